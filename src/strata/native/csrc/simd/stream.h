// A run of tiles of a packed matrix times one activation row: the way of decoding, where memory sets the pace. The run
// is walked without a pause, and what comes after it is asked for before its end.
// Written once for every instruction set and code; `Ops` is one of simd/ops_*.h.
#pragma once

#include "simd/ahead.h"
#include "simd/direct.h"

namespace {

// Some blocks of a tile. lanes: float [8][16].
template <class Ops, class Code, bool Counts, int Parts, bool HasMin>
inline __attribute__((always_inline)) void one_row(const Chunk<Ops> &c, const Decoder<Ops> &decoder, const Operand &x,
                                                   CodesAhead &ahead, float *lanes) {
    for (int part = 0; part < kTileRows; part += Ops::kRows) {
        typename Ops::Float sums[kLanes];
        const auto step = [&](int b, int l) {
            if (part == 0) ahead.step(Code::kBlockBytes);
            block_step<Ops, Code, Counts, 1, Parts, HasMin>(c.codes, c.scales, b, part, decoder, &x, &sums[l],
                                                              kLanes);
        };
        for (int l = 0; l < kLanes; ++l) sums[l] = Ops::load_float(lanes + l * kTileRows + part);
        int b = 0;
        for (; b + kLanes <= c.blocks; b += kLanes) {
#pragma GCC unroll 8
            for (int l = 0; l < kLanes; ++l) step(b + l, l);
        }
        for (int l = 0; l < kLanes; ++l) Ops::store_float(lanes + l * kTileRows + part, sums[l]);
        for (int l = 0; b < c.blocks; ++b, ++l) {
            sums[0] = Ops::load_float(lanes + l * kTileRows + part);
            step(b, 0);
            Ops::store_float(lanes + l * kTileRows + part, sums[0]);
        }
    }
}

template <class Ops, class Code, bool Counts, int Parts, bool HasMin>
void stream_tiles(const TileRun &run, const TileRun &next, const Row &row, float *out) {
    constexpr int kStep = Ops::kRows == kTileRows ? 16 : 32;  // blocks: with 16 vector registers lanes go through memory
    static_assert(kStep <= kChunk && kStreamBlocks % kStep == 0);
    const StrataMatrix &m = *run.matrix;
    const int64_t blocks = m.columns / 32, tile_bytes = blocks * Code::kBlockBytes;
    const Decoder<Ops> decoder = {Ops::table(m.table), Counts ? -m.table[0] : Ops::kBias};
    CodesAhead ahead(run, next, Ops::kRows < kTileRows || !strata::hardware_reads_ahead());
    const int copies = m.sub_block == 64 ? 2 : 1;
    Starts starts;
    Chunk<Ops> chunk;
    for (int64_t tile = run.first; tile < run.end; ++tile, out += kTileRows) {
        if (tile + 1 == run.end) ask_for_start(next);
        alignas(64) float lanes[kLanes * kTileRows];
        for (int i = 0; i < kLanes * kTileRows; i += Ops::kRows) Ops::store_float(lanes + i, Ops::set_float(0.0f));
        chunk.codes = static_cast<const uint8_t *>(m.codes) + tile * tile_bytes;
        for (int64_t first = 0; first < blocks; first += kStep, chunk.codes += kStep * Code::kBlockBytes) {
            const int64_t stage = first % kStreamBlocks;
            Operand x = {row.q + first * 32, row.d + first, starts.start + stage * Parts, starts.total + stage * Parts};
            if (stage == 0 && (tile == run.first || blocks > kStreamBlocks)) {
                const int64_t left = blocks - first;
                fill_starts<Parts>(row, first, static_cast<int>(left < kStreamBlocks ? left : kStreamBlocks),
                                   decoder.bias, HasMin, starts.start, starts.total);
            }
            chunk.blocks = static_cast<int>(blocks - first < kStep ? blocks - first : kStep);
            const ScaleRun scales = {tile, first * 32 / m.sub_block, chunk.blocks * 32 / m.sub_block, copies};
            decode_scales<Ops>(m, scales, chunk.scales.scales);
            if (HasMin) decode_mins<Ops>(m, scales, chunk.scales.mins);
            ask_for_scales(m, {tile, scales.first + scales.count, scales.count, 0});
            one_row<Ops, Code, Counts, Parts, HasMin>(chunk, decoder, x, ahead, lanes);
        }
        finish_row<Ops>(lanes, kLanes, m.post_scale, out);
    }
}

template <class Ops>
void packed_stream(const TileRun &run, const TileRun &next, const Row &row, float *out) {
    const StrataMatrix &m = *run.matrix;
    with_walk<Ops>(m, [&](auto code, auto counts, auto parts, auto has_min) {
        using Code = decltype(code);
        constexpr bool kHasMin = has_min.value;
        if constexpr (Ops::kRows == kTileRows) {
            if (decodes_directly<kHasMin>(m, STRATA_SCALE_SUPER, STRATA_MIN_SUPER))
                return direct_tiles<Ops, Code, counts.value, parts.value, kHasMin, true>(run, next, row, out);
            if (decodes_directly<kHasMin>(m, STRATA_SCALE_F16, STRATA_MIN_F16))
                return direct_tiles<Ops, Code, counts.value, parts.value, kHasMin, false>(run, next, row, out);
        }
        stream_tiles<Ops, Code, counts.value, parts.value, kHasMin>(run, next, row, out);
    });
}

}  // namespace
