// Tiles of a packed matrix times up to kPanelRows activation rows. A chunk of the tiles is unpacked to bytes once, into
// the L2 cache, and every group of activation rows is multiplied with it: lane after lane, with the lane's sums in
// registers. Written once for every instruction set and code; `Ops` is one of simd/ops_*.h.
#pragma once

#include "panel_order.h"
#include "simd/packed.h"

namespace {

using strata::kPanelRows;

// Lines of the next chunk that are asked for while this one is multiplied, a few with every group of rows.
class Ahead {
public:
    Ahead(const void *from, int64_t bytes, int steps)
        : at_(static_cast<const char *>(from)), end_(at_ + bytes), step_((bytes / steps + 64) / 64 * 64) {}
    void step() {
        const char *stop = at_ + step_ < end_ ? at_ + step_ : end_;
        for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
    }

private:
    const char *at_, *end_;
    int64_t step_;
};

// A chunk of the tiles of one call, unpacked. The vectors of one word of all tiles lie side by side.
template <class Ops>
struct Unpacked {
    static constexpr int kVectors = Ops::kPanelVectors, kTiles = kVectors * Ops::kRows / kTileRows;
    static constexpr int kBlockBytes = 8 * kVectors * Ops::kRows * 4;
    int blocks;
    alignas(64) uint8_t words[kPanelBlocks * kBlockBytes];
    alignas(64) float scales[kTiles][kPanelBlocks * 2 * kTileRows];
    alignas(64) float mins[kTiles][kPanelBlocks * 2 * kTileRows];
    alignas(64) float lanes[kLanes][kPanelRows * kVectors * Ops::kRows];
};

template <class Ops, class Code, bool HasMin>
void unpack(const StrataMatrix &m, int64_t first_tile, int64_t first, Unpacked<Ops> &to) {
    const typename Ops::Table table = Ops::table(m.table);
    const int64_t blocks = m.columns / 32, last = (m.rows - 1) / kTileRows;
    const int copies = m.sub_block == 64 ? 2 : 1;
    for (int t = 0; t < to.kTiles; ++t) {
        const int64_t tile = first_tile + t < last ? first_tile + t : last;  // beyond the last one: not looked at
        const auto *codes = static_cast<const uint8_t *>(m.codes) + (tile * blocks + first) * Code::kBlockBytes;
        for (int b = 0; b < to.blocks; ++b, codes += Code::kBlockBytes) {
            uint8_t *place = to.words + place_in_chunk(b, to.blocks, kLanes) * to.kBlockBytes;
            for (int part = 0; part < kTileRows; part += Ops::kRows) {
                typename Ops::Int words[8];
                Code::template decode<Ops>(codes + part * 4, table, words);
                const int vector = (t * kTileRows + part) / Ops::kRows;
                for (int w = 0; w < 8; ++w)
                    Ops::store(place + (w * to.kVectors + vector) * Ops::kRows * 4, words[w]);
            }
        }
        const ScaleRun run = {tile, first * 32 / m.sub_block, to.blocks * 32 / m.sub_block, copies};
        decode_scales<Ops>(m, run, to.scales[t]);
        if (HasMin) decode_mins<Ops>(m, run, to.mins[t]);
    }
}

// The blocks of one lane times one group of rows.
template <class Ops, int Parts, bool HasMin>
void lane_times_group(const Unpacked<Ops> &chunk, int lane, const char *records, bool is_first, float *lanes) {
    using Int = typename Ops::Int;
    using Float = typename Ops::Float;
    constexpr int V = Ops::kPanelVectors, R = Ops::kPackedGroup;
    const auto lane_of = [&](int r, int v) { return lanes + (r * V + v) * Ops::kRows; };
    const auto number = [](const char *at, int i) { return word_of(reinterpret_cast<const int8_t *>(at) + i * 4); };
    const auto value = [](const char *at, int i) { return reinterpret_cast<const float *>(at)[i]; };
    const auto scale_of = [](const float(*scales)[kPanelBlocks * 2 * kTileRows], int i, int v) {
        return Ops::load_float(scales[v * Ops::kRows / kTileRows] + i * kTileRows + v * Ops::kRows % kTileRows);
    };
    Float sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = is_first ? Ops::set_float(0.0f) : Ops::load_float(lane_of(r, v));
    const uint8_t *words = chunk.words + place_in_chunk(lane, chunk.blocks, kLanes) * chunk.kBlockBytes;
    for (int b = lane; b < chunk.blocks; b += kLanes, words += chunk.kBlockBytes, records += Record::kBytes * R) {
        for (int part = 0; part < Parts; ++part) {
            const char *start = records + (Record::kStart + (Parts == 2 ? 1 + part : 0) * 4) * R;
            Int found[R][V];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v)
                    found[r][v] = Ops::kBias == 0 ? Ops::zero() : Ops::set_int(number(start, r));
#pragma GCC unroll 8
            for (int w = part * 8 / Parts; w < (part + 1) * 8 / Parts; ++w) {
                typename Ops::Weight weight[V];
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) weight[v] = Ops::weight(words + (w * V + v) * Ops::kRows * 4);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const Int q = Ops::set_int(number(records, w * R + r));
#pragma GCC unroll 2
                    for (int v = 0; v < V; ++v) found[r][v] = Ops::dot(found[r][v], weight[v], q);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Float d = Ops::set_float(value(records + Record::kD * R, r));
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v)
                    sums[r][v] = Ops::fma(Ops::mul(scale_of(chunk.scales, b * Parts + part, v), d),
                                          Ops::to_float(found[r][v]), sums[r][v]);
            }
        }
        for (int part = 0; HasMin && part < Parts; ++part) {
            const char *total = records + (Record::kTotal + (Parts == 2 ? 1 + part : 0) * 4) * R;
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Float d = Ops::set_float(value(records + Record::kD * R, r));
                const Float sum = Ops::set_float(value(total, r));
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v)
                    sums[r][v] = Ops::fnma(Ops::mul(scale_of(chunk.mins, b * Parts + part, v), d), sum, sums[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) Ops::store_float(lane_of(r, v), sums[r][v]);
}

// out[row][vector] = the tree over the lanes, times the post scale; lanes that no column belongs to are +0.
template <class Ops, int Lanes>
void finish_panel(const float (&lanes)[Lanes][kPanelRows * Ops::kPanelVectors * Ops::kRows], int64_t used, int vectors,
                  float post_scale, float *out) {
    for (int i = 0; i < vectors * Ops::kRows; i += Ops::kRows) {
        typename Ops::Float sums[Lanes];
        for (int l = 0; l < Lanes; ++l) sums[l] = l < used ? Ops::load_float(lanes[l] + i) : Ops::set_float(0.0f);
        for (int half = Lanes / 2; half > 0; half /= 2)
            for (int l = 0; l < half; ++l) sums[l] = Ops::add_float(sums[l], sums[l + half]);
        if (post_scale != 1.0f) sums[0] = Ops::mul(sums[0], Ops::set_float(post_scale));
        Ops::store_float(out + i, sums[0]);
    }
}

template <class Ops, class Code, int Parts, bool HasMin>
void walk_panel(const StrataMatrix &m, int64_t tile, const char *panel, int count, float *out) {
    constexpr int R = Ops::kPackedGroup;
    Unpacked<Ops> chunk;
    const int64_t blocks = m.columns / 32, group_bytes = (blocks * Record::kBytes * R + 63) / 64 * 64;
    const int groups = (count + R - 1) / R;
    for (int64_t first = 0; first < blocks; first += kPanelBlocks) {
        chunk.blocks = static_cast<int>(blocks - first < kPanelBlocks ? blocks - first : kPanelBlocks);
        unpack<Ops, Code, HasMin>(m, tile, first, chunk);
        const bool is_last = first + kPanelBlocks >= blocks;
        const int64_t next = is_last ? (tile + chunk.kTiles) * blocks : tile * blocks + first + kPanelBlocks;
        Ahead ahead(static_cast<const uint8_t *>(m.codes) + next * Code::kBlockBytes,
                    int64_t{kPanelBlocks} * Code::kBlockBytes, kLanes * groups);
        for (int lane = 0; lane < kLanes && lane < chunk.blocks; ++lane) {
            const char *records = panel + (first + place_in_chunk(lane, chunk.blocks, kLanes)) * Record::kBytes * R;
            for (int g = 0; g < groups; ++g, records += group_bytes) {
                ahead.step();
                lane_times_group<Ops, Parts, HasMin>(chunk, lane, records, first == 0,
                                                     chunk.lanes[lane] + g * R * chunk.kVectors * Ops::kRows);
            }
        }
    }
    finish_panel<Ops>(chunk.lanes, static_cast<int>(blocks), count * chunk.kVectors, m.post_scale, out);
}

template <class Ops>
void packed_panel(const StrataMatrix &m, int64_t tile, const char *panel, int32_t count, float *out) {
    with_code(m.code, [&](auto code) {
        using Code = decltype(code);
        const bool halves = m.sub_block == 16, has_min = m.min_kind != STRATA_MIN_NONE;
        if (halves && has_min) return walk_panel<Ops, Code, 2, true>(m, tile, panel, count, out);
        if (halves) return walk_panel<Ops, Code, 2, false>(m, tile, panel, count, out);
        if (has_min) return walk_panel<Ops, Code, 1, true>(m, tile, panel, count, out);
        walk_panel<Ops, Code, 1, false>(m, tile, panel, count, out);
    });
}

}  // namespace
