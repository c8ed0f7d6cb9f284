// Vectors of 8 rows for AVX2 and AVX-VNNI: everything but the integer dot product, which `Ops256<Dot>` is given.
// Knows no code and no matrix.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace {

inline int32_t sum_of_16(__m128i q) {
    const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), q);
    __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    fours = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
    fours = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0xb1));
    return _mm_cvtsi128_si32(fours);
}

inline float largest_of(__m256 values) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

template <class Dot>
struct Ops256 : Dot {
    using Int = __m256i;
    using Float = __m256;
    using Table = __m256i;
    static constexpr int kRows = 8;
    static constexpr int kUnrolledRows = 1;
    static constexpr int kPanelVectors = 2;
    static constexpr int kFloatGroup = 4;

    static Int load(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
    static Int load_once(const void *at) {
        Int v = load(at);
        __asm__("" : "+x"(v));
        return v;
    }
    static void store(void *at, Int v) { _mm256_storeu_si256(static_cast<__m256i *>(at), v); }
    static Int zero() { return _mm256_setzero_si256(); }
    static Int set_int(int32_t value) { return _mm256_set1_epi32(value); }
    static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
    template <int Mask>
    static Int low_bits(Int v) {
        return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(Mask)));
    }
    template <int Bits>
    static Int shift_right(Int v) {
        return _mm256_srli_epi16(v, Bits);
    }
    template <int Bits>
    static Int divide_by_power(Int v) {
        return _mm256_srai_epi32(v, Bits);
    }
    static Int look_up(Table table, Int index) { return _mm256_shuffle_epi8(table, index); }
    static Table table(const int8_t *values) {
        return Dot::from_signed(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values))));
    }

    static Float set_float(float value) { return _mm256_set1_ps(value); }
    static Float load_float(const float *at) { return _mm256_loadu_ps(at); }
    static void store_float(float *at, Float v) { _mm256_storeu_ps(at, v); }
    static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
    static Float add_float(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
    static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
    static Float two_to(Float n) {
        const Int exponent = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    }

    static __m128i eight_bytes(const void *at) { return _mm_loadl_epi64(static_cast<const __m128i *>(at)); }
    static Float of_half(const uint16_t *at) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
    }
    static Float of_bf16(const uint16_t *at) {
        const Int wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    static Float of_int8(const uint8_t *at) { return to_float(_mm256_cvtepi8_epi32(eight_bytes(at))); }
    static Float of_uint8(const uint8_t *at) { return to_float(_mm256_cvtepu8_epi32(eight_bytes(at))); }
    static Float of_e8m0(const uint8_t *at) {
        const Int wide = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight_bytes(at)), 23);
        const Int is_zero = _mm256_cmpeq_epi32(wide, zero());
        return _mm256_castsi256_ps(_mm256_or_si256(wide, _mm256_and_si256(is_zero, set_int(0x00400000))));
    }
    // 2^-8 of the value: a half's exponent is 8 less. The sign comes along with the byte's widening.
    static Float of_e4m3_small(const uint8_t *at) {
        const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(eight_bytes(at)), 7);
        return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<short>(0xbf80))));
    }
    // A half of the same bits is 2^-8 of it.
    static Float of_ue4m3(const uint8_t *at) {
        const __m128i wide = _mm_and_si128(_mm_cvtepu8_epi16(eight_bytes(at)), _mm_set1_epi16(0x7f));
        return mul(_mm256_cvtph_ps(_mm_slli_epi16(wide, 7)), set_float(256.0f));
    }

    static void quantize(const float *x, int32_t columns, int8_t *q, float *d, int32_t *sums) {
        const Float no_sign = _mm256_castsi256_ps(set_int(0x7fffffff));
        for (int32_t b = 0; b < columns / 32; ++b, x += 32, q += 32) {
            Float v[4], largest = _mm256_setzero_ps();
            for (int i = 0; i < 4; ++i) {
                v[i] = load_float(x + i * 8);
                largest = max(largest, _mm256_and_ps(v[i], no_sign));
            }
            const float top = largest_of(largest);
            const bool is_zero = top < strata::kTiny;
            d[b] = is_zero ? 0.0f : top / 127.0f;
            const Float inverse = set_float(is_zero ? 0.0f : 1.0f / d[b]);
            Int whole[4];
            for (int i = 0; i < 4; ++i) {
                whole[i] = _mm256_cvtps_epi32(mul(v[i], inverse));
                whole[i] = _mm256_max_epi32(_mm256_min_epi32(whole[i], set_int(127)), set_int(-127));
            }
            const Int bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                                 _mm256_packs_epi32(whole[2], whole[3]));
            const Int order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs work on halves
            const Int packed = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(q), packed);
            sums[b * 2] = sum_of_16(_mm256_castsi256_si128(packed));
            sums[b * 2 + 1] = sum_of_16(_mm256_extracti128_si256(packed, 1));
        }
    }

    static void read_bytes(const void *bytes, int64_t size) {
        const char *at = static_cast<const char *>(bytes);
        Int seen = zero();
        for (int64_t i = 0; i + 256 <= size; i += 256) {
            __builtin_prefetch(at + i + 4096, 0, 2), __builtin_prefetch(at + i + 4160, 0, 2);
            __builtin_prefetch(at + i + 4224, 0, 2), __builtin_prefetch(at + i + 4288, 0, 2);
            for (int j = 0; j < 256; j += 32) seen = _mm256_xor_si256(seen, load(at + i + j));
        }
        __asm__ volatile("" : : "x"(seen));
    }
};

}  // namespace
