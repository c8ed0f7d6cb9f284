// Reads the affinity mask and the topology that Linux shows. Knows no thread but the calling one.
#include "affinity.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace strata {
namespace {

constexpr int kMostCpus = 8192;

// The lowest hardware thread of the CPU's physical core, as the kernel lists siblings; the CPU itself if it does not.
int first_sibling(int cpu) {
    char path[96];
    std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    std::FILE *file = std::fopen(path, "r");
    if (!file) return cpu;
    int first = cpu;
    if (std::fscanf(file, "%d", &first) != 1) first = cpu;
    std::fclose(file);
    return first;
}

}  // namespace

std::vector<int> usable_cpus() {
    std::vector<int> cpus;
    cpu_set_t *mask = CPU_ALLOC(kMostCpus);
    if (!mask) return cpus;
    const size_t size = CPU_ALLOC_SIZE(kMostCpus);
    CPU_ZERO_S(size, mask);
    if (sched_getaffinity(0, size, mask) == 0)
        for (int cpu = 0; cpu < kMostCpus; ++cpu)
            if (CPU_ISSET_S(cpu, size, mask)) cpus.push_back(cpu);
    CPU_FREE(mask);

    // Siblings share caches and vector units: the second thread of a core comes after the first ones of all cores.
    std::vector<std::pair<int, int>> order;  // how many of its siblings come before, cpu
    std::vector<int> cores;
    for (int cpu : cpus) {
        const int core = first_sibling(cpu);
        order.emplace_back(static_cast<int>(std::count(cores.begin(), cores.end(), core)), cpu);
        cores.push_back(core);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) cpus[i] = order[i].second;
    return cpus;
}

bool pin_this_thread(int cpu) {
    cpu_set_t *mask = CPU_ALLOC(kMostCpus);
    if (!mask) return false;
    const size_t size = CPU_ALLOC_SIZE(kMostCpus);
    CPU_ZERO_S(size, mask);
    CPU_SET_S(cpu, size, mask);
    const bool done = sched_setaffinity(0, size, mask) == 0;
    CPU_FREE(mask);
    return done;
}

}  // namespace strata
