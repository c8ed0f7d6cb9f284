// The stream of simd/stream.h for vectors of 16 rows and the kinds of scales that most files have: a scale is decoded
// in a register by the block that needs it, so that codes are read without a pause, and lanes stay in registers for a
// whole tile. `Ops` is one of simd/ops_*.h.
#pragma once

#include "cpu_features.h"
#include "simd/ahead.h"
#include "simd/packed.h"

namespace {

// Starts and totals of up to kStreamBlocks blocks, made once for all tiles of a run.
constexpr int kStreamBlocks = 256;
struct Starts {
    alignas(64) int32_t start[kStreamBlocks * 2];
    alignas(64) float total[kStreamBlocks * 2];
};

// Scales are asked for 512 columns ahead, into the L1 cache: a stream that slow is not worth following to the hardware,
// and a block waits for its scales (4-bit codes lose a fifth without).
constexpr int kGroupsAhead = 2;

// One array of scales or mins from a tile on, in order: halves, or bytes with a half for each super block.
template <class Ops, int Parts, bool Super, bool Signed>
class SubScales {
public:
    using Float = typename Ops::Float;
    static constexpr int kBytes = kTileRows * (Super ? 1 : 2);

    // `first`: sub-blocks before the tile.
    SubScales(const void *array, const void *supers, int64_t first, int32_t sub_block)
        : at_(static_cast<const uint8_t *>(array) + first * kBytes),
          super_at_(static_cast<const uint16_t *>(supers) + (Super ? first * sub_block / 256 * kTileRows : 0)) {}

    // Before every 256 columns. Asks for what comes kGroupsAhead later; it may lie past the end.
    void enter() {
        constexpr int kGroupBytes = kLanes * Parts * kBytes;
        for (int line = 0; line < kGroupBytes; line += 64)
            __builtin_prefetch(at_ + kGroupsAhead * kGroupBytes + line, 0, 3);
        if constexpr (!Super) return;
        __builtin_prefetch(super_at_ + kGroupsAhead * kTileRows, 0, 3);
        super_ = Ops::of_half(super_at_);
        super_at_ += kTileRows;
    }
    void skip(int count) { at_ += count * kBytes; }
    Float value(int i) const {
        const uint8_t *bytes = at_ + i * kBytes;
        if constexpr (!Super) return Ops::of_half(reinterpret_cast<const uint16_t *>(bytes));
        return Ops::mul(super_, Signed ? Ops::of_int8(bytes) : Ops::of_uint8(bytes));
    }

private:
    const uint8_t *at_;
    const uint16_t *super_at_;
    Float super_ = Ops::set_float(0.0f);
};

// Whether scales and mins (if there are any) are of these kinds, one for each block or half a block.
template <bool HasMin>
bool decodes_directly(const StrataMatrix &m, int32_t scale_kind, int32_t min_kind) {
    return m.scale_kind == scale_kind && (!HasMin || m.min_kind == min_kind) && m.sub_block <= 32;
}

template <class Ops, int Parts, bool Super>
struct TileScales {
    SubScales<Ops, Parts, Super, true> scales;
    SubScales<Ops, Parts, Super, false> mins;

    TileScales(const StrataMatrix &m, int64_t first)
        : scales(m.scales, m.super_scales, first, m.sub_block),
          mins(m.mins, m.super_mins, m.mins ? first : 0, m.sub_block) {}
    typename Ops::Float scale(int i, int) const { return scales.value(i); }
    typename Ops::Float min(int i, int) const { return mins.value(i); }
};

template <class Ops, class Code, bool Counts, int Parts, bool HasMin, bool Super>
void direct_tiles(const TileRun &run, const TileRun &next, const Row &row, float *out) {
    using Float = typename Ops::Float;
    const StrataMatrix &m = *run.matrix;
    const int64_t blocks = m.columns / 32;
    const Decoder<Ops> decoder = {Ops::table(m.table), Counts ? -m.table[0] : Ops::kBias};
    const uint8_t *codes = static_cast<const uint8_t *>(m.codes) + run.first * blocks * Code::kBlockBytes;
    TileScales<Ops, Parts, Super> scales(m, run.first * blocks * Parts);
    CodesAhead ahead(run, next, !strata::hardware_reads_ahead());
    Starts starts;
    for (int64_t tile = run.first; tile < run.end; ++tile, out += kTileRows) {
        if (tile + 1 == run.end) ask_for_start(next);
        Float sums[kLanes];
        for (Float &sum : sums) sum = Ops::set_float(0.0f);
        for (int64_t first = 0; first < blocks; first += kStreamBlocks) {
            const int count = static_cast<int>(blocks - first < kStreamBlocks ? blocks - first : kStreamBlocks);
            if (tile == run.first || blocks > kStreamBlocks)
                fill_starts<Parts>(row, first, count, decoder.bias, HasMin, starts.start, starts.total);
            Operand x = {row.q + first * 32, row.d + first, starts.start, starts.total};
            const auto step = [&](int l) {
                ahead.step(Code::kBlockBytes);
                block_step<Ops, Code, Counts, 1, Parts, HasMin>(codes, scales, l, 0, decoder, &x, &sums[l], 1);
            };
            const auto advance = [&](int done) {
                codes += done * Code::kBlockBytes;
                x = {x.q + done * 32, x.d + done, x.start + done * Parts, x.total + done * Parts};
                scales.scales.skip(done * Parts);
                if (HasMin) scales.mins.skip(done * Parts);
            };
            int b = 0;
            for (; b + kLanes <= count; b += kLanes) {
                scales.scales.enter();
                if (HasMin) scales.mins.enter();
#pragma GCC unroll 8
                for (int l = 0; l < kLanes; ++l) step(l);
                advance(kLanes);
            }
            const int left = count - b;
            if (left == 0) continue;
#pragma GCC unroll 8
            for (int l = 0; l < kLanes - 1; ++l)
                if (l < left) step(l);
            advance(left);
        }
        alignas(64) float lanes[kLanes * kTileRows];
        for (int l = 0; l < kLanes; ++l) Ops::store_float(lanes + l * kTileRows, sums[l]);
        finish_row<Ops>(lanes, kLanes, m.post_scale, out);
    }
}

}  // namespace
