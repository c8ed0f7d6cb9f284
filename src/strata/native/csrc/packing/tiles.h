// Rows of blocks, and rows of floats, as tiles of 16 rows: a tile's arrays are written at once, from front to back.
// Knows the order in a tile; knows no file and no thread.
#pragma once

#include <cstdint>
#include <cstring>

#include "packing/blocks.h"
#include "packing/transpose.h"

namespace strata::packing {

// Where one tile's arrays go; null where a format has none.
struct TilePlace {
    uint8_t *codes, *scales, *super_scales, *mins, *super_mins;
};

// Bytes of each array of one tile.
struct TileSizes {
    int64_t codes, scales, super_scales, mins, super_mins;
};

// `rows` (1 to 16) rows from `bytes` on, row_bytes each; rows that are missing become zero. False: see blocks.h.
using PackTile = bool (*)(const uint8_t *bytes, int64_t row_bytes, int rows, int32_t columns, const TilePlace &out);

// `count` values of each of 16 blocks, `first` being those of the first one, behind those of `column` blocks before.
template <class Block, class Value>
void write_column(uint8_t *out, int64_t column, int count, const Value *first) {
    static_assert(sizeof(Block) % sizeof(uint32_t) == 0, "blocks lie a whole number of values apart");
    transpose(first, sizeof(Block) / sizeof(Value), count,
              reinterpret_cast<Value *>(out) + column * count * kTileRows);
}

template <class Format>
bool pack_blocks(const uint8_t *bytes, int64_t row_bytes, int rows, int32_t columns, const TilePlace &out) {
    Block<Format> blocks[kTileRows];
    std::memset(static_cast<void *>(blocks), 0, sizeof blocks);
    bool is_good = true;
    for (int64_t column = 0; column < columns / Format::kWeights; ++column) {
        for (int row = 0; row < rows; ++row)
            is_good &= Format::split(bytes + row * row_bytes + column * Format::kBytes, blocks[row]);
        using Held = Block<Format>;
        write_column<Held>(out.codes, column, Format::kWords, blocks->words);
        write_column<Held>(out.scales, column, Format::kScales, blocks->scales);
        if (Format::kMins) write_column<Held>(out.mins, column, Format::kMins, blocks->mins);
        if (Format::kIsSuper) write_column<Held>(out.super_scales, column, 1, &blocks->super_scale);
        if (Format::kIsSuperMin) write_column<Held>(out.super_mins, column, 1, &blocks->super_min);
    }
    return is_good;
}

// Floats of `Word`'s width whose exponent is all ones are no numbers.
template <class Word, Word kExponent>
bool pack_floats(const uint8_t *bytes, int64_t row_bytes, int rows, int32_t columns, const TilePlace &out) {
    constexpr int kAtOnce = 64 / sizeof(Word);  // columns: a line of each row
    alignas(64) Word values[kTileRows][kAtOnce] = {};
    Word *at = reinterpret_cast<Word *>(out.codes);
    unsigned broken = 0;
    for (int32_t first = 0; first < columns; first += kAtOnce) {
        const int width = columns - first < kAtOnce ? columns - first : kAtOnce;
        for (int row = 0; row < rows; ++row) {
            const uint8_t *from = bytes + row * row_bytes + first * int64_t{sizeof(Word)};
            if (width == kAtOnce)
                std::memcpy(values[row], from, 64);
            else
                std::memcpy(values[row], from, static_cast<size_t>(width) * sizeof(Word));
            for (int i = 0; i < kAtOnce; ++i) broken |= (values[row][i] & kExponent) == kExponent;
        }
        transpose(&values[0][0], kAtOnce, width, at + int64_t{first} * kTileRows);
    }
    return broken == 0;
}

// A format as the packer needs it.
struct PackFormat {
    int32_t type, block_weights, block_bytes;
    PackTile pack;
    int code_bytes, scale_bytes, super_bytes, min_bytes, super_min_bytes;  // a row of one block takes

    int64_t row_bytes(int32_t columns) const { return int64_t{columns} / block_weights * block_bytes; }
    TileSizes tile_sizes(int32_t columns) const {
        const int64_t blocks = int64_t{columns} / block_weights * kTileRows;
        return {blocks * code_bytes, blocks * scale_bytes, blocks * super_bytes, blocks * min_bytes,
                blocks * super_min_bytes};
    }
};

template <class Format>
constexpr PackFormat blocks_format() {
    return {Format::kType,
            Format::kWeights,
            Format::kBytes,
            pack_blocks<Format>,
            4 * Format::kWords,
            static_cast<int>(sizeof(typename Format::Scale)) * Format::kScales,
            Format::kIsSuper ? 2 : 0,
            static_cast<int>(sizeof(typename Format::Min)) * Format::kMins,
            Format::kIsSuperMin ? 2 : 0};
}

template <class Word, Word kExponent>
constexpr PackFormat float_format(int32_t type) {
    return {type, 1, sizeof(Word), pack_floats<Word, kExponent>, sizeof(Word), 0, 0, 0, 0};
}

// Null for a type that has no entry.
const PackFormat *find_format(int32_t type);

}  // namespace strata::packing
