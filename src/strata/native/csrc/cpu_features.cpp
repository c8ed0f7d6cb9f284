// Which instruction sets may be used: what the CPU has and the system saves on a switch of threads.
// Knows no kernel; kernels are chosen from these bits where they live.
#include "cpu_features.h"

#include "strata_native.h"

namespace {

// Bit numbers are part of the ABI: library.py holds the same list.
enum Feature : unsigned {
    kSse41 = 0,
    kAvx2 = 1,
    kFma = 2,
    kF16c = 3,
    kAvxVnni = 4,
    kAvx512 = 5,  // F, BW, DQ and VL together: the set that kernels are written for
    kAvx512Vnni = 6,
    kAvx512Bf16 = 7,
    kAmxInt8 = 8,
};

uint64_t bit(Feature feature, bool present) { return present ? uint64_t{1} << feature : 0; }

#if defined(__x86_64__)

struct Leaf {
    uint32_t eax, ebx, ecx, edx;
};

Leaf cpuid(uint32_t leaf, uint32_t subleaf) {
    Leaf r{};
    __asm__ volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "a"(leaf), "c"(subleaf));
    return r;
}

// XCR0: which register files the system saves. Only valid if OSXSAVE is set.
uint64_t saved_state() {
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t{high} << 32) | low;
}

bool has(uint32_t word, unsigned position) { return (word >> position) & 1u; }

bool all_saved(uint64_t xcr0, uint64_t mask) { return (xcr0 & mask) == mask; }

uint64_t detect() {
    const uint32_t highest = cpuid(0, 0).eax;
    const Leaf one = cpuid(1, 0);
    uint64_t found = bit(kSse41, has(one.ecx, 19));
    if (!has(one.ecx, 27) || highest < 7) return found;  // no OSXSAVE: no wider registers

    const uint64_t xcr0 = saved_state();
    const bool ymm = all_saved(xcr0, 0x6);        // xmm, ymm
    const bool zmm = all_saved(xcr0, 0xe6);       // ... opmask, zmm
    const bool tiles = all_saved(xcr0, 0x60000);  // tile configuration and data
    const Leaf seven = cpuid(7, 0);
    const Leaf seven_one = seven.eax >= 1 ? cpuid(7, 1) : Leaf{};

    found |= bit(kFma, ymm && has(one.ecx, 12));
    found |= bit(kF16c, ymm && has(one.ecx, 29));
    found |= bit(kAvx2, ymm && has(seven.ebx, 5));
    found |= bit(kAvxVnni, ymm && has(seven_one.eax, 4));
    const bool avx512 = zmm && has(seven.ebx, 16) && has(seven.ebx, 17) && has(seven.ebx, 30) && has(seven.ebx, 31);
    found |= bit(kAvx512, avx512);
    found |= bit(kAvx512Vnni, avx512 && has(seven.ecx, 11));
    found |= bit(kAvx512Bf16, avx512 && has(seven_one.eax, 5));
    found |= bit(kAmxInt8, tiles && has(seven.edx, 24) && has(seven.edx, 25));
    return found;
}

bool is_amd() { return cpuid(0, 0).ebx == 0x68747541; }  // "Auth" of "AuthenticAMD"

#else

uint64_t detect() { return 0; }
bool is_amd() { return false; }

#endif

}  // namespace

bool strata::hardware_reads_ahead() {
    static const bool amd = is_amd();
    return amd;
}

uint64_t strata_cpu_features() {
    static const uint64_t features = detect();
    return features;
}
