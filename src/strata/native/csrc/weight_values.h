// What single weights and scales of a packed matrix are: the definition, one number at a time.
// Knows no activation. Everything is private to the file that includes it (see numbers.h).
#pragma once

#include "codes/codes.h"
#include "matrix.h"
#include "numbers.h"

namespace {

using strata::kTileRows;

// The exact scale of sub-block s of a tile's row.
inline float scale_of(const StrataMatrix &m, int64_t tile, int64_t s, int row) {
    const int64_t subs = m.columns / m.sub_block, at = (tile * subs + s) * kTileRows + row;
    switch (m.scale_kind) {
        case STRATA_SCALE_F16: return float_of_half(static_cast<const uint16_t *>(m.scales)[at]);
        case STRATA_SCALE_E8M0: return float_of_e8m0(static_cast<const uint8_t *>(m.scales)[at]);
        case STRATA_SCALE_UE4M3: return float_of_e4m3(static_cast<const uint8_t *>(m.scales)[at] & 0x7f);
        case STRATA_SCALE_F32: return static_cast<const float *>(m.scales)[at];
        default: break;
    }
    const int64_t super = (tile * (m.columns / 256) + s * m.sub_block / 256) * kTileRows + row;
    return float_of_half(static_cast<const uint16_t *>(m.super_scales)[super]) *
           static_cast<float>(static_cast<const int8_t *>(m.scales)[at]);
}

inline float min_of(const StrataMatrix &m, int64_t tile, int64_t s, int row) {
    const int64_t subs = m.columns / m.sub_block, at = (tile * subs + s) * kTileRows + row;
    if (m.min_kind == STRATA_MIN_F16) return float_of_half(static_cast<const uint16_t *>(m.mins)[at]);
    const int64_t super = (tile * (m.columns / 256) + s * m.sub_block / 256) * kTileRows + row;
    return float_of_half(static_cast<const uint16_t *>(m.super_mins)[super]) *
           static_cast<float>(static_cast<const uint8_t *>(m.mins)[at]);
}

inline float float_weight(const StrataMatrix &m, int64_t tile, int64_t column, int row) {
    const int64_t at = (tile * m.columns + column) * kTileRows + row;
    switch (m.code) {
        case STRATA_F32: return static_cast<const float *>(m.codes)[at];
        case STRATA_BF16: return float_of_bf16(static_cast<const uint16_t *>(m.codes)[at]);
        case STRATA_F16: return float_of_half(static_cast<const uint16_t *>(m.codes)[at]);
        default: break;
    }
    const int64_t subs = strata::sub_blocks_of(m);
    const float scale = static_cast<const float *>(m.scales)[(tile * subs + column / m.sub_block) * kTileRows + row];
    return float_of_e4m3(static_cast<const uint8_t *>(m.codes)[at]) * scale;
}

}  // namespace
