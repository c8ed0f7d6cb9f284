// Chooses the instruction set at run time: the best that the CPU has, or the one that a test forces.
// Knows no kernel from inside.
#include <atomic>

#include "errors.h"
#include "kernels.h"

namespace strata {
namespace {

// Bits of strata_cpu_features(); cpu_features.cpp defines them.
constexpr uint64_t kAvx2Fma = 1u << 1 | 1u << 2 | 1u << 3;
constexpr uint64_t kNeeds[] = {0, kAvx2Fma, kAvx2Fma | 1u << 4, kAvx2Fma | 1u << 5 | 1u << 6};
constexpr const char *kNames[] = {"scalar", "avx2", "avx_vnni", "avx512_vnni"};

#if defined(__x86_64__)
const KernelSet *const kTables[] = {&kScalarKernels, &kAvx2Kernels, &kAvxVnniKernels, &kAvx512VnniKernels};
#else
const KernelSet *const kTables[] = {&kScalarKernels, nullptr, nullptr, nullptr};
#endif

bool has(int32_t isa) { return kTables[isa] && (strata_cpu_features() & kNeeds[isa]) == kNeeds[isa]; }

int32_t best() {
    int32_t isa = STRATA_ISA_AVX512_VNNI;
    while (!has(isa)) --isa;
    return isa;
}

std::atomic<int32_t> chosen{STRATA_ISA_BEST};

}  // namespace

const KernelSet &kernels() { return *kTables[strata_current_isa()]; }

}  // namespace strata

int32_t strata_force_isa(int32_t isa) {
    using namespace strata;
    if (isa < STRATA_ISA_BEST || isa > STRATA_ISA_AVX512_VNNI)
        return fail(STRATA_INVALID, "no instruction set has number %d", isa);
    if (isa != STRATA_ISA_BEST && !has(isa))
        return fail(STRATA_UNSUPPORTED, "this CPU cannot run the %s path", kNames[isa]);
    chosen.store(isa);
    return STRATA_OK;
}

int32_t strata_current_isa() {
    const int32_t isa = strata::chosen.load(std::memory_order_relaxed);
    if (isa != STRATA_ISA_BEST) return isa;
    static const int32_t found = strata::best();
    return found;
}
