// A tile of 16 output rows of a matrix in a float code times several activation rows, and the element-wise functions.
// Written once for every instruction set; `Ops` is one of simd/ops_*.h.
#pragma once

#include "kernels.h"
#include "simd/packed.h"

namespace {

constexpr int kFloatLanes = 16;
constexpr int kFloatChunk = 64;  // columns: 4 KiB of float32

// Codes without scales.
struct Unscaled {
    template <class Ops>
    static typename Ops::Float scale(const StrataMatrix &, int64_t, int64_t, int) {
        return Ops::set_float(1.0f);
    }
};
struct ReadF32 : Unscaled {
    template <class Ops>
    static typename Ops::Float read(const StrataMatrix &m, int64_t, int64_t at, int64_t, typename Ops::Float) {
        return Ops::load_float(static_cast<const float *>(m.codes) + at);
    }
};
struct ReadBf16 : Unscaled {
    template <class Ops>
    static typename Ops::Float read(const StrataMatrix &m, int64_t, int64_t at, int64_t, typename Ops::Float) {
        return Ops::of_bf16(static_cast<const uint16_t *>(m.codes) + at);
    }
};
struct ReadF16 : Unscaled {
    template <class Ops>
    static typename Ops::Float read(const StrataMatrix &m, int64_t, int64_t at, int64_t, typename Ops::Float) {
        return Ops::of_half(static_cast<const uint16_t *>(m.codes) + at);
    }
};
// Value times its block's scale, rounded once; for sub-blocks of whole runs of lanes. A chunk lies in one sub-block, so
// its scale is read once (a division for each value took more than half of the time), and values come as halves of
// 2^-8 of them: the factor stands in the scale, where it is exact.
struct ReadFp8 {
    template <class Ops>
    static typename Ops::Float read(const StrataMatrix &m, int64_t, int64_t at, int64_t, typename Ops::Float scale) {
        return Ops::mul(Ops::of_e4m3_small(static_cast<const uint8_t *>(m.codes) + at), scale);
    }
    template <class Ops>
    static typename Ops::Float scale(const StrataMatrix &m, int64_t tile, int64_t column, int part) {
        const int64_t subs = (m.columns + m.sub_block - 1) / m.sub_block;
        const int64_t block = tile * subs + column / m.sub_block;
        const auto found = Ops::load_float(static_cast<const float *>(m.scales) + block * kTileRows + part);
        return Ops::mul(found, Ops::set_float(256.0f));
    }
};

// The same for sub-blocks of any size.
struct ReadFp8Anywhere : Unscaled {
    template <class Ops>
    static typename Ops::Float read(const StrataMatrix &m, int64_t tile, int64_t at, int64_t column, typename Ops::Float) {
        const auto scale = ReadFp8::scale<Ops>(m, tile, column, static_cast<int>(at % kTileRows));
        return Ops::mul(Ops::of_e4m3_small(static_cast<const uint8_t *>(m.codes) + at), scale);
    }
};

// Columns first .. end of a tile for Rows activation rows; lanes: float [Rows][16][16].
template <class Ops, class Reader, int Rows>
void float_chunk(const StrataMatrix &m, int64_t tile, int64_t first, int64_t end, const Row *x, float *lanes) {
    constexpr int kStride = kFloatLanes * kTileRows;
    for (int part = 0; part < kTileRows; part += Ops::kRows) {
        const typename Ops::Float scale = Reader::template scale<Ops>(m, tile, first, part);
        for (int l = 0; l < kFloatLanes; ++l) {
            typename Ops::Float sums[Rows];
            for (int r = 0; r < Rows; ++r) sums[r] = Ops::load_float(lanes + r * kStride + l * kTileRows + part);
            for (int64_t k = first + l; k < end; k += kFloatLanes) {
                const int64_t at = (tile * m.columns + k) * kTileRows + part;
                const typename Ops::Float w = Reader::template read<Ops>(m, tile, at, k, scale);
                for (int r = 0; r < Rows; ++r) sums[r] = Ops::fma(w, Ops::set_float(x[r].x[k]), sums[r]);
            }
            for (int r = 0; r < Rows; ++r) Ops::store_float(lanes + r * kStride + l * kTileRows + part, sums[r]);
        }
    }
}

template <class Ops, class Reader>
void walk_float_tile(const StrataMatrix &m, int64_t tile, int element_bytes, const Row *rows, int count, float *out) {
    constexpr int kStride = kFloatLanes * kTileRows;
    alignas(64) float lanes[kMostRows * kStride];
    for (int i = 0; i < count * kStride; i += Ops::kRows) Ops::store_float(lanes + i, Ops::set_float(0.0f));
    const bool in_blocks = m.code == STRATA_FP8 && m.sub_block % kFloatLanes == 0;  // a chunk ends with its sub-block
    for (int64_t first = 0, end; first < m.columns; first = end) {
        end = first + kFloatChunk < m.columns ? first + kFloatChunk : m.columns;
        if (in_blocks && end > (first / m.sub_block + 1) * m.sub_block) end = (first / m.sub_block + 1) * m.sub_block;
        const char *next = static_cast<const char *>(m.codes) + (tile * m.columns + end) * kTileRows * element_bytes;
        for (int line = 0; line < kFloatChunk * kTileRows * element_bytes; line += 64)
            __builtin_prefetch(next + line, 0, 3);
        for (int r = 0, group; r < count; r += group) {
            group = group_of(count - r);
            float *at = lanes + r * kStride;
            if (group == 1) float_chunk<Ops, Reader, 1>(m, tile, first, end, rows + r, at);
            if (group == 2) float_chunk<Ops, Reader, 2>(m, tile, first, end, rows + r, at);
            if (group == 4) float_chunk<Ops, Reader, 4>(m, tile, first, end, rows + r, at);
        }
    }
    for (int i = 0; i < count; ++i)
        finish_row<Ops>(lanes + i * kStride, kFloatLanes, m.post_scale, out + i * kTileRows);
}

template <class Ops>
void float_tile(const StrataMatrix &m, int64_t tile, const Row *rows, int32_t count, float *out) {
    if (m.code == STRATA_F32) walk_float_tile<Ops, ReadF32>(m, tile, 4, rows, count, out);
    if (m.code == STRATA_BF16) walk_float_tile<Ops, ReadBf16>(m, tile, 2, rows, count, out);
    if (m.code == STRATA_F16) walk_float_tile<Ops, ReadF16>(m, tile, 2, rows, count, out);
    if (m.code != STRATA_FP8) return;
    if (m.sub_block % kFloatLanes == 0) return walk_float_tile<Ops, ReadFp8>(m, tile, 1, rows, count, out);
    walk_float_tile<Ops, ReadFp8Anywhere>(m, tile, 1, rows, count, out);
}

template <class Ops>
typename Ops::Float exp_of(typename Ops::Float x) {
    const auto c = [](float value) { return Ops::set_float(value); };
    const auto clamped = Ops::min(Ops::max(x, c(-87.0f)), c(88.0f));
    const auto shifted = Ops::add_float(Ops::mul(clamped, c(1.44269504f)), c(12582912.0f));
    const auto n = Ops::add_float(shifted, c(-12582912.0f));
    auto r = Ops::fma(n, c(-0.693145752f), clamped);
    r = Ops::fma(n, c(-1.42860677e-6f), r);
    auto p = c(1.0f / 720.0f);
    p = Ops::fma(p, r, c(1.0f / 120.0f));
    p = Ops::fma(p, r, c(1.0f / 24.0f));
    p = Ops::fma(p, r, c(1.0f / 6.0f));
    p = Ops::fma(p, r, c(0.5f));
    p = Ops::fma(p, r, c(1.0f));
    p = Ops::fma(p, r, c(1.0f));
    return Ops::mul(p, Ops::two_to(n));
}

// body(i) for every full vector of `count` elements, body on padded copies for the rest; at most two inputs.
template <class Ops, class Body>
void element_wise(const float *a, const float *b, float *out, int64_t count, Body &&body) {
    int64_t i = 0;
    for (; i + Ops::kRows <= count; i += Ops::kRows)
        Ops::store_float(out + i, body(Ops::load_float(a + i), Ops::load_float(b + i)));
    if (i == count) return;
    float pad_a[Ops::kRows] = {}, pad_b[Ops::kRows] = {};
    for (int64_t j = i; j < count; ++j) pad_a[j - i] = a[j], pad_b[j - i] = b[j];
    Ops::store_float(pad_a, body(Ops::load_float(pad_a), Ops::load_float(pad_b)));
    for (int64_t j = i; j < count; ++j) out[j] = pad_a[j - i];
}

template <class Ops>
void silu_mul(const float *gate, const float *up, float *h, int64_t count) {
    element_wise<Ops>(gate, up, h, count, [](auto g, auto u) {
        const auto bottom = Ops::add_float(Ops::set_float(1.0f), exp_of<Ops>(Ops::mul(g, Ops::set_float(-1.0f))));
        return Ops::mul(Ops::div(g, bottom), u);
    });
}

template <class Ops>
void add_scaled(float weight, const float *row, float *total, int64_t count) {
    element_wise<Ops>(row, total, total, count,
                      [weight](auto a, auto b) { return Ops::fma(Ops::set_float(weight), a, b); });
}

}  // namespace
