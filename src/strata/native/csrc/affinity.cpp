// Reads the affinity mask and the topology that Linux shows, and pins threads.
#include "affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

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

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// The thread stays on this CPU; false where the system refuses.
bool pin(pid_t thread, int cpu) {
    cpu_set_t *mask = CPU_ALLOC(kMostCpus);
    if (!mask) return false;
    const size_t size = CPU_ALLOC_SIZE(kMostCpus);
    CPU_ZERO_S(size, mask);
    CPU_SET_S(cpu, size, mask);
    const bool done = sched_setaffinity(thread, size, mask) == 0;
    CPU_FREE(mask);
    return done;
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

void Homes::settle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < 2 || !pin(this_thread(), free_[1])) return;
    residents_.push_back({this_thread(), free_[1]});
    free_.erase(free_.begin() + 1);
}

void Homes::leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(residents_.begin(), residents_.end(),
                                    [](const Resident &resident) { return resident.thread == this_thread(); });
    if (found == residents_.end()) return;
    free_.push_back(found->cpu);
    residents_.erase(found);
}

void Homes::make_way() {
    const int cpu = sched_getcpu();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Resident &resident : residents_) {
        if (resident.cpu != cpu || resident.thread == this_thread() || free_.empty()) continue;
        if (pin(resident.thread, free_[0])) std::swap(resident.cpu, free_[0]);
        return;
    }
}

}  // namespace strata
