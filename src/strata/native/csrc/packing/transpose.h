// 16 rows of values become values of 16 rows: the order in a tile. Knows no format.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace strata::packing {

constexpr int kTileRows = 16;

// out[value * 16 + row] = row `row`'s value; rows lie `stride` values apart.
template <class Value>
void transpose_one_by_one(const Value *in, int64_t stride, int first, int count, Value *__restrict out) {
    for (int value = first; value < count; ++value)
        for (int row = 0; row < kTileRows; ++row) out[int64_t{value} * kTileRows + row] = in[row * stride + value];
}

template <class Value>
void transpose(const Value *in, int64_t stride, int count, Value *__restrict out) {
    transpose_one_by_one(in, stride, 0, count, out);
}

#if defined(__SSE2__)
inline __m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
inline void store(void *at, __m128i value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }

// Four values of four rows at a time; `count` that is no multiple of four goes the plain way.
template <>
inline void transpose(const uint32_t *in, int64_t stride, int count, uint32_t *__restrict out) {
    const int whole = count / 4 * 4;
    for (int value = 0; value < whole; value += 4)
        for (int row = 0; row < kTileRows; row += 4) {
            const uint32_t *from = in + row * stride + value;
            const __m128i a = load(from), b = load(from + stride), c = load(from + 2 * stride), d = load(from + 3 * stride);
            const __m128i ab_low = _mm_unpacklo_epi32(a, b), ab_high = _mm_unpackhi_epi32(a, b);
            const __m128i cd_low = _mm_unpacklo_epi32(c, d), cd_high = _mm_unpackhi_epi32(c, d);
            uint32_t *to = out + value * kTileRows + row;
            store(to, _mm_unpacklo_epi64(ab_low, cd_low));
            store(to + kTileRows, _mm_unpackhi_epi64(ab_low, cd_low));
            store(to + 2 * kTileRows, _mm_unpacklo_epi64(ab_high, cd_high));
            store(to + 3 * kTileRows, _mm_unpackhi_epi64(ab_high, cd_high));
        }
    transpose_one_by_one(in, stride, whole, count, out);
}

// Eight values of eight rows at a time, the rest the plain way.
template <>
inline void transpose(const uint16_t *in, int64_t stride, int count, uint16_t *__restrict out) {
    const int whole = count / 8 * 8;
    for (int value = 0; value < whole; value += 8)
        for (int row = 0; row < kTileRows; row += 8) {
            __m128i a[8], b[8];
            for (int i = 0; i < 8; ++i) a[i] = load(in + (row + i) * stride + value);
            for (int i = 0; i < 4; ++i) {  // pairs of rows
                b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
            }
            for (int half = 0; half < 2; ++half) {  // fours of rows
                const __m128i *pair = b + 4 * half;
                a[4 * half] = _mm_unpacklo_epi32(pair[0], pair[2]);
                a[4 * half + 1] = _mm_unpackhi_epi32(pair[0], pair[2]);
                a[4 * half + 2] = _mm_unpacklo_epi32(pair[1], pair[3]);
                a[4 * half + 3] = _mm_unpackhi_epi32(pair[1], pair[3]);
            }
            for (int i = 0; i < 4; ++i) {
                uint16_t *to = out + (value + 2 * i) * kTileRows + row;
                store(to, _mm_unpacklo_epi64(a[i], a[4 + i]));
                store(to + kTileRows, _mm_unpackhi_epi64(a[i], a[4 + i]));
            }
        }
    transpose_one_by_one(in, stride, whole, count, out);
}
#endif

}  // namespace strata::packing
