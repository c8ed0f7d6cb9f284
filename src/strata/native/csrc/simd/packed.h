// A tile of 16 output rows of a packed matrix times several activation rows. The tile is walked in chunks: a chunk's
// scales become float32 in the L1 cache first, then its codes are decoded once for up to kGroup activation rows.
// Written once for every instruction set and code; `Ops` is one of simd/ops_*.h.
#pragma once

#include <type_traits>

#include "codes/codes.h"
#include "kernels.h"
#include "simd/ahead.h"
#include "simd/scales.h"

namespace {

using strata::kMostRows;
using strata::Row;

constexpr int kChunk = 32;  // blocks: a chunk of code4 is 8 KiB, its scales 2 or 4 KiB; a multiple of 8 keeps the lanes
constexpr int kLanes = 8;
template <int N>
using Number = std::integral_constant<int, N>;
constexpr int kGroup = 4;
// Activation rows that go together when `left` are left: 4, 2 or 1, so that three loops are compiled and not four.
inline int group_of(int left) { return left >= kGroup ? kGroup : (left >= 2 ? 2 : 1); }

// What a chunk needs of one activation row.
struct Operand {
    const int8_t *q;      // 32 a block
    const float *d;        // a block
    const int32_t *start;  // what the integer sum begins with: takes the bias of the codes back
    const float *total;    // sums of q as floats, for the mins
};

// Scales and mins of a chunk, decoded before its blocks are. Value i is that of block i, or of a half block.
template <class Ops>
struct ChunkScales {
    alignas(64) float scales[kChunk * 2 * kTileRows];
    alignas(64) float mins[kChunk * 2 * kTileRows];

    typename Ops::Float scale(int i, int part) const { return Ops::load_float(scales + i * kTileRows + part); }
    typename Ops::Float min(int i, int part) const { return Ops::load_float(mins + i * kTileRows + part); }
};

template <class Ops>
struct Chunk {
    const uint8_t *codes;
    int blocks;
    ChunkScales<Ops> scales;
};

// How a code's bytes become what the dot product takes, and what that adds to every weight.
template <class Ops>
struct Decoder {
    typename Ops::Table table;
    int32_t bias;
};

template <int Parts>
void fill_starts(const Row &row, int64_t first, int blocks, int32_t bias, bool has_min, int32_t *start, float *total) {
    const int32_t *sums = row.sums + first * 2;
    for (int i = 0; i < blocks * Parts; ++i) {
        const int32_t sum = Parts == 2 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
        start[i] = -bias * sum;
        if (has_min) total[i] = static_cast<float>(sum);
    }
}

inline int32_t word_of(const int8_t *four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof word);
    return word;
}

// The integer sums of a block: of its first and second half if Parts is 2, otherwise their sum is low + high.
template <class Ops, class Code, bool Counts, int Parts>
inline __attribute__((always_inline)) void integer_sums(const typename Ops::Int *words, const int8_t *q,
                                                        const int32_t *start, typename Ops::Int *low,
                                                        typename Ops::Int *high) {
    using Int = typename Ops::Int;
    const auto pair = [&](Int sum, int p) {
        sum = Ops::dot(sum, words[2 * p], Ops::set_int(word_of(q + 8 * p)));
        return Ops::dot(sum, words[2 * p + 1], Ops::set_int(word_of(q + 8 * p + 4)));
    };
    if constexpr (!Counts) {
        *low = pair(pair(Ops::set_int(start[0]), 0), 1);
        *high = pair(pair(Parts == 2 ? Ops::set_int(start[1]) : Ops::zero(), 2), 3);
    } else {  // words are codes shifted left: exact, and taken back once a sum instead of once a word
        constexpr const int *shift = Code::kShift;
        *low = pair(Ops::set_int(start[0]), 0);
        if constexpr (shift[1] == 0)
            *low = pair(*low, 1);
        else
            *low = Ops::add(*low, Ops::template divide_by_power<shift[1]>(pair(Ops::zero(), 1)));
        if constexpr (shift[2] == shift[3])
            *high = Ops::template divide_by_power<shift[2]>(pair(pair(Ops::zero(), 2), 3));
        else
            *high = Ops::add(Ops::template divide_by_power<shift[2]>(pair(Ops::zero(), 2)),
                             Ops::template divide_by_power<shift[3]>(pair(Ops::zero(), 3)));
        if (Parts == 2) *high = Ops::add(*high, Ops::set_int(start[1]));
    }
}

// Block b, counted from where codes, scales and operands begin, for Rows operands; lane is each operand's accumulator.
// Scales is ChunkScales or TileScales.
template <class Ops, class Code, bool Counts, int Rows, int Parts, bool HasMin, class Scales>
inline __attribute__((always_inline)) void block_step(const uint8_t *first_codes, const Scales &scales, int b, int part,
                                                      const Decoder<Ops> &decoder, const Operand *x,
                                                      typename Ops::Float *lane, int stride) {
    using Int = typename Ops::Int;
    using Float = typename Ops::Float;
    const uint8_t *codes = first_codes + b * Code::kBlockBytes + part * 4;
    Int words[8];
    if constexpr (Counts)
        Code::template decode_counting<Ops>(codes, words);
    else
        Code::template decode<Ops>(codes, decoder.table, words);
    for (int r = 0; r < Rows; ++r) {
        Int low, high;
        integer_sums<Ops, Code, Counts, Parts>(words, x[r].q + b * 32, x[r].start + b * Parts, &low, &high);
        const Float d = Ops::set_float(x[r].d[b]);
        Float sum = lane[r * stride];
        const auto scale = [&](int i) { return Ops::mul(scales.scale(b * Parts + i, part), d); };
        if (Parts == 1) {
            sum = Ops::fma(scale(0), Ops::to_float(Ops::add(low, high)), sum);
        } else {
            sum = Ops::fma(scale(0), Ops::to_float(low), sum);
            sum = Ops::fma(scale(1), Ops::to_float(high), sum);
        }
        for (int i = 0; HasMin && i < Parts; ++i)
            sum = Ops::fnma(Ops::mul(scales.min(b * Parts + i, part), d), Ops::set_float(x[r].total[b * Parts + i]),
                            sum);
        lane[r * stride] = sum;
    }
}

// A chunk for Rows operands. lanes: float [Rows][8][16].
template <class Ops, class Code, bool Counts, int Rows, int Parts, bool HasMin>
void chunk_rows(const Chunk<Ops> &c, const Decoder<Ops> &decoder, const Operand *x, float *lanes) {
    using Float = typename Ops::Float;
    for (int part = 0; part < kTileRows; part += Ops::kRows) {
        Float sums[Rows][kLanes];  // registers where they are enough
        const auto step = [&](int b, int l) {
            if (part == 0) ask_for(c.codes, b * Code::kBlockBytes + kCodesAhead, Code::kBlockBytes);
            block_step<Ops, Code, Counts, Rows, Parts, HasMin>(c.codes, c.scales, b, part, decoder, x,
                                                                 &sums[0][l], kLanes);
        };
        for (int r = 0; r < Rows; ++r)
            for (int l = 0; l < kLanes; ++l) sums[r][l] = Ops::load_float(lanes + (r * kLanes + l) * kTileRows + part);
        int b = 0;
        if constexpr (Rows <= Ops::kUnrolledRows) {
            for (; b + kLanes <= c.blocks; b += kLanes) {
#pragma GCC unroll 8
                for (int l = 0; l < kLanes; ++l) step(b + l, l);
            }
        }
        for (; b < c.blocks; ++b) step(b, b % kLanes);
        for (int r = 0; r < Rows; ++r)
            for (int l = 0; l < kLanes; ++l) Ops::store_float(lanes + (r * kLanes + l) * kTileRows + part, sums[r][l]);
    }
}

// out[16] = the tree over 8 lanes of [16], times the post scale.
template <class Ops>
void finish_row(const float *lanes, int count, float post_scale, float *out) {
    for (int part = 0; part < kTileRows; part += Ops::kRows) {
        typename Ops::Float sums[16];
        for (int l = 0; l < count; ++l) sums[l] = Ops::load_float(lanes + l * kTileRows + part);
        for (int half = count / 2; half > 0; half /= 2)
            for (int l = 0; l < half; ++l) sums[l] = Ops::add_float(sums[l], sums[l + half]);
        if (post_scale != 1.0f) sums[0] = Ops::mul(sums[0], Ops::set_float(post_scale));
        Ops::store_float(out + part, sums[0]);
    }
}

template <class Ops, class Code, bool Counts, int Parts, bool HasMin>
void walk_tile(const StrataMatrix &m, int64_t tile, const Row *rows, int count, float *out) {
    alignas(64) float lanes[kMostRows * kLanes * kTileRows];
    alignas(64) int32_t start[kGroup][kChunk * 2];
    alignas(64) float total[kGroup][kChunk * 2];
    Operand x[kGroup];
    Chunk<Ops> chunk;
    const Decoder<Ops> decoder = {Ops::table(m.table), Counts ? -m.table[0] : Ops::kBias};
    const int64_t blocks = m.columns / 32;
    const auto *codes = static_cast<const uint8_t *>(m.codes) + tile * blocks * Code::kBlockBytes;
    for (int i = 0; i < count * kLanes * kTileRows; i += Ops::kRows) Ops::store_float(lanes + i, Ops::set_float(0.0f));
    for (int64_t first = 0; first < blocks; first += kChunk) {
        chunk.codes = codes + first * Code::kBlockBytes;
        chunk.blocks = static_cast<int>(blocks - first < kChunk ? blocks - first : kChunk);
        const int copies = m.sub_block == 64 ? 2 : 1;
        const ScaleRun run = {tile, first * 32 / m.sub_block, chunk.blocks * 32 / m.sub_block, copies};
        decode_scales<Ops>(m, run, chunk.scales.scales);
        if (HasMin) decode_mins<Ops>(m, run, chunk.scales.mins);
        ask_for_scales(m, {tile, run.first + run.count, run.count, 0});
        for (int r = 0, group; r < count; r += group) {
            group = group_of(count - r);
            for (int i = 0; i < group; ++i) {
                const Row &row = rows[r + i];
                fill_starts<Parts>(row, first, chunk.blocks, decoder.bias, HasMin, start[i], total[i]);
                x[i] = {row.q + first * 32, row.d + first, start[i], total[i]};
            }
            float *at = lanes + r * kLanes * kTileRows;
            if (group == 1) chunk_rows<Ops, Code, Counts, 1, Parts, HasMin>(chunk, decoder, x, at);
            if (group == 2) chunk_rows<Ops, Code, Counts, 2, Parts, HasMin>(chunk, decoder, x, at);
            if (group == 4) chunk_rows<Ops, Code, Counts, 4, Parts, HasMin>(chunk, decoder, x, at);
        }
    }
    for (int i = 0; i < count; ++i)
        finish_row<Ops>(lanes + i * kLanes * kTileRows, kLanes, m.post_scale, out + i * kTileRows);
}

// Whether the table is its first entry and then one more each time: true of most formats.
inline bool counts_up(const int8_t *table, int entries) {
    for (int i = 1; i < entries; ++i)
        if (table[i] != table[0] + i) return false;
    return true;
}

// Calls use(code, counts, parts, has_min) with what the matrix is, as types.
template <class Ops, class Use>
void with_walk(const StrataMatrix &m, Use &&use) {
    const auto with_parts = [&](auto code, auto counts) {
        const bool halves = m.sub_block == 16, has_min = m.min_kind != STRATA_MIN_NONE;
        if (halves && has_min) return use(code, counts, Number<2>{}, Number<1>{});
        if (halves) return use(code, counts, Number<2>{}, Number<0>{});
        if (has_min) return use(code, counts, Number<1>{}, Number<1>{});
        use(code, counts, Number<1>{}, Number<0>{});
    };
    with_code(m.code, [&](auto code) {
        using Code = decltype(code);
        if constexpr (Code::kCanCount && Ops::kTakesAnyByte)
            if (counts_up(m.table, 1 << Code::kNumber)) return with_parts(code, Number<1>{});
        with_parts(code, Number<0>{});
    });
}

template <class Ops>
void packed_tile(const StrataMatrix &m, int64_t tile, const Row *rows, int32_t count, float *out) {
    with_walk<Ops>(m, [&](auto code, auto counts, auto parts, auto has_min) {
        walk_tile<Ops, decltype(code), counts.value, parts.value, has_min.value>(m, tile, rows, count, out);
    });
}

}  // namespace
