// The integer dot product alone, from registers: what no kernel of this instruction set can be faster than.
#pragma once

#include <cstdint>

#include "simd/packed.h"

namespace {

// Runs `rounds` rounds on independent sums; returns how many weights were multiplied and added.
template <class Ops>
int64_t multiply_only(int64_t rounds) {
    constexpr int kSums = 10;  // enough to hide the latency; fit into 16 registers
    alignas(64) static const int8_t bytes[64] = {1, 2, 3};
    const typename Ops::Weight weight = Ops::weight(bytes);
    typename Ops::Int q = Ops::load(bytes);
    typename Ops::Int sums[kSums];
    for (auto &sum : sums) sum = Ops::zero();
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 10
        for (int i = 0; i < kSums; ++i) {
            __asm__ volatile("" : "+x"(q));  // or half of a product of several instructions is done once, before the loop
            sums[i] = Ops::dot(sums[i], weight, q);
        }
    for (int i = 1; i < kSums; ++i) sums[0] = Ops::add(sums[0], sums[i]);
    __asm__ volatile("" : : "x"(sums[0]));
    return rounds * kSums * Ops::kRows * 4;
}

}  // namespace
