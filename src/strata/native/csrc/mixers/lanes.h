// Sixteen float lanes: loads with tails, sums in a fixed order, exp and what is made of it.
// Every operation is IEEE binary32 in a written order and none is fused, so that the bits do not depend on whether the
// compiler makes one 512-bit instruction of it or four of 128 bits. Knows no layer.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "clones.h"

namespace strata {

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
constexpr int kLanes = 16;

STRATA_INLINE Lanes same(float value) { return Lanes{} + value; }

STRATA_INLINE Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

STRATA_INLINE void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// The first `count` values (all sixteen if there are that many), zeros behind them.
STRATA_INLINE Lanes load_some(const float* from, int64_t count) {
    if (count >= kLanes) return load(from);
    Lanes lanes = {};
    std::memcpy(&lanes, from, sizeof(float) * count);
    return lanes;
}

STRATA_INLINE void store_some(float* to, Lanes lanes, int64_t count) {
    if (count >= kLanes) return store(to, lanes);
    std::memcpy(to, &lanes, sizeof(float) * count);
}

STRATA_INLINE Lanes larger(Lanes a, Lanes b) { return a < b ? b : a; }

// Lanes added in the order +8, +4, +2, +1.
STRATA_INLINE float sum_of(Lanes v) {
    typedef float Half __attribute__((vector_size(32)));
    typedef float Quarter __attribute__((vector_size(16)));
    Half low, high;
    std::memcpy(&low, &v, 32);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + 32, 32);
    const Half eight = low + high;
    Quarter first, second;
    std::memcpy(&first, &eight, 16);
    std::memcpy(&second, reinterpret_cast<const char*>(&eight) + 16, 16);
    const Quarter four = first + second;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

STRATA_INLINE float largest_of(Lanes v) {
    float best = v[0];
    for (int lane = 1; lane < kLanes; ++lane) best = best < v[lane] ? v[lane] : best;
    return best;
}

// Element k belongs to lane k mod 16; the lanes' sums before they are added up.
STRATA_INLINE Lanes products(const float* a, const float* b, int64_t count) {
    Lanes sum = {};
    for (int64_t i = 0; i < count; i += kLanes) sum += load_some(a + i, count - i) * load_some(b + i, count - i);
    return sum;
}

STRATA_INLINE float dot(const float* a, const float* b, int64_t count) { return sum_of(products(a, b, count)); }

// exp within 2 units in the last place for -87..88, outside of which the argument is clamped. n * 0.693145752 is exact
// (15 bits times 8), so no fused operation is needed.
STRATA_INLINE Lanes exp_of(Lanes x) {
    x = x < same(-87.0f) ? same(-87.0f) : x;
    x = x > same(88.0f) ? same(88.0f) : x;
    const Lanes shifted = x * 1.44269504f + 12582912.0f;  // the integer stands in the low bits
    const Lanes n = shifted - 12582912.0f;
    const Lanes r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    Lanes p = same(1.0f / 720);
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const IntLanes exponent = (reinterpret_cast<IntLanes>(shifted) << 23) + (127 << 23);
    return p * reinterpret_cast<Lanes>(exponent);
}

STRATA_INLINE Lanes sigmoid_of(Lanes x) { return same(1.0f) / (exp_of(-x) + 1.0f); }
STRATA_INLINE Lanes silu_of(Lanes x) { return x / (exp_of(-x) + 1.0f); }

STRATA_INLINE float exp_of(float x) { return exp_of(same(x))[0]; }
STRATA_INLINE float sigmoid_of(float x) { return 1.0f / (exp_of(-x) + 1.0f); }

}  // namespace strata
