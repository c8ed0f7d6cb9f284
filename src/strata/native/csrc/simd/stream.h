// A run of tiles of a packed matrix times one activation row: the way of decoding, where memory sets the pace. The run
// is walked without a pause, and lines are asked for a fixed distance ahead, beyond its end those of the run after it.
// Written once for every instruction set and code; `Ops` is one of simd/ops_*.h.
#pragma once

#include "simd/packed.h"

namespace {

using strata::TileRun;

// Asks for one array's lines ahead of the place that is read.
class LinesAhead {
public:
    // The array of a run of tiles lies at [from, from + bytes), that of the next run begins at `next` (null: none).
    LinesAhead(const void *from, int64_t bytes, const void *next, int64_t distance) {
        const char *begin = static_cast<const char *>(from);
        end_ = begin + bytes;
        next_ = next ? static_cast<const char *>(next) : begin;  // without one: lines that are there already
        at_ = distance < bytes ? begin + distance : next_;
    }
    void step(int64_t bytes) {
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at_ + line, 0, 2);
        at_ += bytes;
        if (at_ >= end_ && at_ - bytes < end_) at_ = next_ + (at_ - end_);
    }

private:
    const char *at_, *end_, *next_;
};

inline LinesAhead ahead_of(const void *array, const void *next_array, const TileRun &run, const TileRun &next,
                           int64_t tile_bytes, int64_t distance) {
    const auto place = [&](const void *from, int64_t tile) {
        return static_cast<const char *>(from) + tile * tile_bytes;
    };
    return {place(array, run.first), (run.end - run.first) * tile_bytes,
            next.matrix && next_array ? place(next_array, next.first) : nullptr, distance};
}

// Starts and totals of up to kStreamBlocks blocks, made once for all tiles of a run.
constexpr int kStreamBlocks = 256;
struct Starts {
    alignas(64) int32_t start[kStreamBlocks * 2];
    alignas(64) float total[kStreamBlocks * 2];
};

// Some blocks of a tile. lanes: float [8][16].
template <class Ops, class Code, bool Counts, int Parts, bool HasMin>
inline __attribute__((always_inline)) void one_row(const Chunk &c, const Decoder<Ops> &decoder, const Operand &x,
                                                   LinesAhead &ahead, float *lanes) {
    for (int part = 0; part < kTileRows; part += Ops::kRows) {
        typename Ops::Float sums[kLanes];
        const auto step = [&](int b, int l) {
            if (part == 0) ahead.step(Code::kBlockBytes);
            block_step<Ops, Code, Counts, 1, Parts, HasMin>(c, b, part, decoder, &x, &sums[l], kLanes);
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
    const int sub_bytes = kTileRows * scale_bytes(m.scale_kind), subs = static_cast<int>(m.columns / m.sub_block);
    const Decoder<Ops> decoder = {Ops::table(m.table), Counts ? -m.table[0] : Ops::kBias};
    const StrataMatrix &after = next.matrix ? *next.matrix : m;
    LinesAhead codes_ahead = ahead_of(m.codes, after.codes, run, next, tile_bytes, kCodesAhead);
    LinesAhead scales_ahead = ahead_of(m.scales, after.scales, run, next, int64_t{subs} * sub_bytes, kScalesAhead);
    const int copies = m.sub_block == 64 ? 2 : 1;
    Starts starts;
    Chunk chunk;
    for (int64_t tile = run.first; tile < run.end; ++tile, out += kTileRows) {
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
            decode_scales<Ops>(m, scales, chunk.scales);
            if (HasMin) decode_mins<Ops>(m, scales, chunk.mins);
            scales_ahead.step(int64_t{scales.count} * sub_bytes);
            one_row<Ops, Code, Counts, Parts, HasMin>(chunk, decoder, x, codes_ahead, lanes);
        }
        finish_row<Ops>(lanes, kLanes, m.post_scale, out);
    }
}

template <class Ops>
void packed_stream(const TileRun &run, const TileRun &next, const Row &row, float *out) {
    const StrataMatrix &m = *run.matrix;
    with_walk<Ops>(m, [&](auto code, auto counts, auto parts, auto has_min) {
        stream_tiles<Ops, decltype(code), counts.value, parts.value, has_min.value>(run, next, row, out);
    });
}

}  // namespace
