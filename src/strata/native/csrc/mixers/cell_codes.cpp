// See cell_codes.h.
#include "cell_codes.h"

#include "../errors.h"
#include "../rounding.h"
#include "lanes.h"

namespace strata {
namespace {

constexpr float kMostScale = 65504.0f;  // the largest finite float16

// To the nearest, ties to even; 0 <= value <= kMostScale.
uint16_t half_of(float value) {
    if (value < 6.103515625e-05f) {  // 2^-14: a denormal is a whole number of 2^-24, which stands in the low bits
        value = value * 16777216.0f + 8388608.0f;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return static_cast<uint16_t>(bits & 0xffff);
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits += 0xfff + (bits >> 13 & 1);
    return static_cast<uint16_t>((bits - (112u << 23)) >> 13);
}

// bfloat16 to the nearest, ties to even; NaN stays one.
STRATA_INLINE void store_bf16(const float *from, int count, uint16_t *to) {
    typedef uint16_t Halves __attribute__((vector_size(32)));
    typedef uint32_t Words __attribute__((vector_size(64)));
    const Lanes x = load_some(from, count);
    const Words bits = reinterpret_cast<Words>(x);
    const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const Words kept = reinterpret_cast<Words>(x == x);
    const Halves halves = __builtin_convertvector((rounded & kept) | (0x7fc0 & ~kept), Halves);
    if (count >= kLanes) {
        std::memcpy(to, &halves, sizeof halves);
    } else {
        std::memcpy(to, &halves, sizeof(uint16_t) * count);
    }
}

STRATA_INLINE float largest_size(const float *x, int count) {
    Lanes most = {};
    for (int i = 0; i < count; i += kLanes) {
        const Lanes lanes = load(x + i);
        most = larger(most, lanes < 0.0f ? -lanes : lanes);
    }
    return largest_of(most);
}

// A group's scale, so that its largest value has the level `most`.
STRATA_INLINE uint16_t group_scale(const float *x, int count, float most) {
    const float step = largest_size(x, count) / most;
    return half_of(step < kMostScale ? step : kMostScale);
}

// x / scale as whole numbers from -most to most, ties to even. A NaN gives some number.
STRATA_INLINE IntLanes levels_of(Lanes x, float scale, float most) {
    Lanes level = x / scale;
    level = level > most ? same(most) : level;
    level = level < -most ? same(-most) : level;
    return reinterpret_cast<IntLanes>(level + 12582912.0f) - 0x4b400000;  // the integer stands in the low bits
}

STRATA_INLINE void encode_groups(const float *x, int head_dim, float most, int8_t *levels, uint16_t *scales) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    const int width = head_dim < kCellGroup ? head_dim : kCellGroup;
    for (int first = 0; first < head_dim; first += width) {
        const uint16_t half = group_scale(x + first, width, most);
        scales[first / width] = half;
        if (half == 0) {
            std::memset(levels + first, 0, width);
            continue;
        }
        const float scale = scale_of(half);
        for (int i = first; i < first + width; i += kLanes) {
            const Bytes bytes = __builtin_convertvector(levels_of(load(x + i), scale, most), Bytes);
            std::memcpy(levels + i, &bytes, sizeof bytes);
        }
    }
}

STRATA_INLINE void encode_code4(const float *x, int head_dim, uint8_t *codes, uint16_t *scales) {
    alignas(64) float rotated[kMostCodedHead];
    alignas(64) int8_t levels[kMostCodedHead];
    std::memcpy(rotated, x, sizeof(float) * head_dim);
    rotate_head(rotated, head_dim);
    encode_groups(rotated, head_dim, 7.0f, levels, scales);
    const int half = head_dim / 2;
    for (int i = 0; i < half; ++i) {
        const int low = (levels[i] + kNibbleZero) & 15, high = (levels[half + i] + kNibbleZero) & 15;
        codes[i] = static_cast<uint8_t>(low | high << 4);
    }
}

// Of every lane and the one `stride` away: the sum in the lower of the two, lower minus upper in the upper.
template <int stride>
STRATA_INLINE Lanes pair_up(Lanes v) {
    IntLanes other;
    Lanes sign;
    for (int lane = 0; lane < kLanes; ++lane) {
        other[lane] = lane ^ stride;
        sign[lane] = lane & stride ? -1.0f : 1.0f;
    }
    return __builtin_shuffle(v, other) + v * sign;
}

}  // namespace

STRATA_CLONES void rotate_head(float *head, int head_dim) {
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    for (int d = 0; d < head_dim; d += kLanes) {
        store(head + d, pair_up<8>(pair_up<4>(pair_up<2>(pair_up<1>(load(head + d))))));
    }
    for (int stride = kLanes; stride < head_dim; stride *= 2) {
        for (int d = 0; d < head_dim; d += kLanes) {
            if (d & stride) continue;
            const Lanes lower = load(head + d), upper = load(head + d + stride);
            store(head + d, lower + upper);
            store(head + d + stride, lower - upper);
        }
    }
    for (int d = 0; d < head_dim; d += kLanes) store(head + d, load(head + d) * factor);
}

STRATA_CLONES void encode_cells(
    int32_t code, int64_t heads, int head_dim, const float *x, void *codes, uint16_t *scales) {
    const int groups = scale_count(code, head_dim);
    const int64_t bytes = code_bytes(code, head_dim);
    char *to = static_cast<char *>(codes);
    for (int64_t head = 0; head < heads; ++head, x += head_dim, to += bytes) {
        uint16_t *head_scales = groups ? scales + head * groups : nullptr;
        switch (code) {
            case STRATA_CELL_BF16:
                for (int i = 0; i < head_dim; i += kLanes) {
                    store_bf16(x + i, head_dim - i, reinterpret_cast<uint16_t *>(to) + i);
                }
                break;
            case STRATA_CELL_CODE8:
                encode_groups(x, head_dim, 127.0f, reinterpret_cast<int8_t *>(to), head_scales);
                break;
            case STRATA_CELL_CODE4: encode_code4(x, head_dim, reinterpret_cast<uint8_t *>(to), head_scales); break;
            default: std::memcpy(to, x, bytes);
        }
    }
}

int32_t check_cells(int32_t code, int head_dim) {
    if (code < STRATA_CELL_F32 || code > STRATA_CELL_CODE4) return fail(STRATA_INVALID, "cells of code %d", code);
    const bool is_power = head_dim >= 32 && head_dim <= kMostCodedHead && !(head_dim & (head_dim - 1));
    if (has_scales(code) && !is_power)
        return fail(STRATA_INVALID, "cells of code %d with heads of %d values; 32, 64, 128 and 256 work", code,
                    head_dim);
    return STRATA_OK;
}

}  // namespace strata

int32_t strata_encode_cells(int32_t code, int64_t heads, int32_t head_dim, const float *x, void *codes,
                            uint16_t *scales) {
    if (const int32_t refused = strata::check_cells(code, head_dim)) return refused;
    const strata::Rounding rounding;
    strata::encode_cells(code, heads, head_dim, x, codes, scales);
    return STRATA_OK;
}
