// Tiles of a matrix in a float code times up to kPanelRows activation rows: as simd/panels.h, with values instead of
// bytes. Written once for every instruction set; `Ops` is one of simd/ops_*.h.
#pragma once

#include "simd/floats.h"
#include "simd/panels.h"

namespace {

// A chunk of the tiles of one call as float32.
template <class Ops>
struct Values {
    static constexpr int kVectors = Ops::kPanelVectors, kTiles = kVectors * Ops::kRows / kTileRows;
    int columns;
    alignas(64) float weights[kPanelColumns * kVectors * Ops::kRows];
    alignas(64) float lanes[kFloatLanes][kPanelRows * kVectors * Ops::kRows];
};

template <class Ops, class Reader>
void unpack_values(const StrataMatrix &m, int64_t first_tile, int64_t first, Values<Ops> &to) {
    const int64_t last = (m.rows - 1) / kTileRows;
    for (int v = 0; v < to.kVectors; ++v) {
        const int64_t wanted = first_tile + v * Ops::kRows / kTileRows, tile = wanted < last ? wanted : last;
        const int part = v * Ops::kRows % kTileRows;
        for (int turn = 0; turn < to.columns; turn += kFloatLanes) {
            const auto scale = Reader::template scale<Ops>(m, tile, first + turn, part);
            const int lanes = to.columns - turn < kFloatLanes ? to.columns - turn : kFloatLanes;
            for (int lane = 0; lane < lanes; ++lane) {
                const int64_t column = first + turn + lane, at = (tile * m.columns + column) * kTileRows + part;
                const int place = place_in_chunk(lane, to.columns, kFloatLanes) + turn / kFloatLanes;
                Ops::store_float(to.weights + (place * to.kVectors + v) * Ops::kRows,
                                 Reader::template read<Ops>(m, tile, at, column, scale));
            }
        }
    }
}

// The columns of one lane times one group of rows.
template <class Ops>
void values_times_group(const Values<Ops> &chunk, int lane, const float *x, bool is_first, float *lanes) {
    using Float = typename Ops::Float;
    constexpr int V = Ops::kPanelVectors, R = Ops::kFloatGroup;
    const auto lane_of = [&](int r, int v) { return lanes + (r * V + v) * Ops::kRows; };
    Float sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = is_first ? Ops::set_float(0.0f) : Ops::load_float(lane_of(r, v));
    const float *weights = chunk.weights + place_in_chunk(lane, chunk.columns, kFloatLanes) * V * Ops::kRows;
    for (int k = lane; k < chunk.columns; k += kFloatLanes, weights += V * Ops::kRows, x += R) {
        Float weight[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) weight[v] = Ops::load_float(weights + v * Ops::kRows);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Float value = Ops::set_float(x[r]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sums[r][v] = Ops::fma(weight[v], value, sums[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) Ops::store_float(lane_of(r, v), sums[r][v]);
}

template <class Ops, class Reader>
void walk_float_panel(const StrataMatrix &m, int64_t tile, const char *panel, int count, int value_bytes, float *out) {
    constexpr int R = Ops::kFloatGroup;
    Values<Ops> chunk;
    const int64_t columns = m.columns, group_bytes = (columns * 4 * R + 63) / 64 * 64;
    const int groups = (count + R - 1) / R;
    for (int64_t first = 0; first < columns; first += kPanelColumns) {
        chunk.columns = static_cast<int>(columns - first < kPanelColumns ? columns - first : kPanelColumns);
        unpack_values<Ops, Reader>(m, tile, first, chunk);
        const bool is_last = first + kPanelColumns >= columns;
        const int64_t next = is_last ? (tile + chunk.kTiles) * columns : tile * columns + first + kPanelColumns;
        Ahead ahead(static_cast<const char *>(m.codes) + next * kTileRows * value_bytes,
                    int64_t{kPanelColumns} * kTileRows * value_bytes, kFloatLanes * groups);
        for (int lane = 0; lane < kFloatLanes && lane < chunk.columns; ++lane) {
            const int64_t place = first + place_in_chunk(lane, chunk.columns, kFloatLanes);
            for (int g = 0; g < groups; ++g) {
                ahead.step();
                const auto *x = reinterpret_cast<const float *>(panel + g * group_bytes) + place * R;
                values_times_group<Ops>(chunk, lane, x, first == 0,
                                        chunk.lanes[lane] + g * R * chunk.kVectors * Ops::kRows);
            }
        }
    }
    finish_panel<Ops>(chunk.lanes, columns, count * chunk.kVectors, m.post_scale, out);
}

template <class Ops>
void float_panel(const StrataMatrix &m, int64_t tile, const char *panel, int32_t count, float *out) {
    if (m.code == STRATA_F32) walk_float_panel<Ops, ReadF32>(m, tile, panel, count, 4, out);
    if (m.code == STRATA_BF16) walk_float_panel<Ops, ReadBf16>(m, tile, panel, count, 2, out);
    if (m.code == STRATA_F16) walk_float_panel<Ops, ReadF16>(m, tile, panel, count, 2, out);
    if (m.code != STRATA_FP8) return;
    if (m.sub_block % kFloatLanes == 0) return walk_float_panel<Ops, ReadFp8>(m, tile, panel, count, 1, out);
    walk_float_panel<Ops, ReadFp8Anywhere>(m, tile, panel, count, 1, out);
}

}  // namespace
