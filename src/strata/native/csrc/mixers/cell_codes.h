// How heads of keys and values are stored in cells, bit for bit as quant/cell_codes.py defines it: float32 to codes and
// scales and back, and the rotation that 4-bit codes are of. Knows no slot, no attention and no thread.
#pragma once

#include <cstring>

#include "clones.h"
#include "mixers.h"

namespace strata {

constexpr int kCellGroup = 64;       // values that share a scale; a head of 32 is one group
constexpr int kMostCodedHead = 256;  // values of a head whose code has scales: 32, 64, 128 or 256
constexpr int kNibbleZero = 8;       // what a nibble holds for the level 0

inline bool has_scales(int32_t code) { return code == STRATA_CELL_CODE8 || code == STRATA_CELL_CODE4; }

// Whether what is stored, and what decoding gives, are rotated heads.
inline bool is_rotated(int32_t code) { return code == STRATA_CELL_CODE4; }

inline int64_t code_bytes(int32_t code, int head_dim) {
    switch (code) {
        case STRATA_CELL_BF16: return 2 * int64_t{head_dim};
        case STRATA_CELL_CODE8: return head_dim;
        case STRATA_CELL_CODE4: return head_dim / 2;
        default: return 4 * int64_t{head_dim};
    }
}

inline int scale_count(int32_t code, int head_dim) {
    return has_scales(code) ? (head_dim < kCellGroup ? 1 : head_dim / kCellGroup) : 0;
}

// 0, or the error of a code that there is not or that has no room for heads of this size.
int32_t check_cells(int32_t code, int head_dim);

// `heads` heads, one after another, as they are stored; `scales` is not touched where the code has none.
void encode_cells(int32_t code, int64_t heads, int head_dim, const float *x, void *codes, uint16_t *scales);

// The orthonormal Walsh-Hadamard rotation of a head in place: head_dim 32, 64, 128 or 256.
void rotate_head(float *head, int head_dim);

// A finite float16 that is not negative: its bits are those of a float32 2^112 times smaller, denormals included.
STRATA_INLINE float scale_of(uint16_t half) {
    const uint32_t bits = uint32_t{half} << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value * 5.192296858534828e33f;
}

// Nibbles of `count` bytes, the low (shift 0) or the high ones (shift 4).
STRATA_INLINE void decode_nibbles(const uint8_t *bytes, int shift, int count, float scale, float *to) {
    for (int i = 0; i < count; ++i) to[i] = static_cast<float>((bytes[i] >> shift & 15) - kNibbleZero) * scale;
}

// A group of a head of CODE4, `count` values from column d on: low nibbles are the first half of a head, high ones the
// second.
STRATA_INLINE void decode_code4(const uint8_t *codes, int head_dim, int d, int count, float scale, float *to) {
    const int half = head_dim / 2;
    if (count == head_dim) {
        decode_nibbles(codes, 0, half, scale, to);
        decode_nibbles(codes, 4, half, scale, to + half);
    } else if (d < half) {
        decode_nibbles(codes + d, 0, count, scale, to);
    } else {
        decode_nibbles(codes + d - half, 4, count, scale, to);
    }
}

// Columns d .. d + width - 1 of a stored head of another code than F32 to float32: whole groups where it has scales.
// Plain loops: compilers make better code of them than of vectors whose elements change their size.
STRATA_INLINE void decode_columns(
    int32_t code, const char *codes, const uint16_t *scales, int head_dim, int d, int width, float *to) {
    if (code == STRATA_CELL_BF16) {
        const uint16_t *halves = reinterpret_cast<const uint16_t *>(codes) + d;
        for (int i = 0; i < width; ++i) {
            const uint32_t bits = uint32_t{halves[i]} << 16;
            std::memcpy(to + i, &bits, sizeof bits);
        }
        return;
    }
    const int group = head_dim < kCellGroup ? head_dim : kCellGroup;
    for (int i = d; i < d + width; i += group, to += group) {
        const float scale = scale_of(scales[i / kCellGroup]);
        if (code == STRATA_CELL_CODE4) {
            decode_code4(reinterpret_cast<const uint8_t *>(codes), head_dim, i, group, scale, to);
            continue;
        }
        const int8_t *levels = reinterpret_cast<const int8_t *>(codes) + i;
        for (int k = 0; k < group; ++k) to[k] = static_cast<float>(levels[k]) * scale;
    }
}

}  // namespace strata
