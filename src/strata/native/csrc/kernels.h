// What one instruction set offers: the functions that every path above calls through a table.
// Knows no thread and no memory of its own. All tables compute the same bits; the scalar one is the definition.
#pragma once

#include <cstdint>

#include "strata_native.h"

namespace strata {

// One row of activations in the forms that codes want: quantized for packed codes, x for float codes.
struct Row {
    const int8_t *q;      // [columns]
    const float *d;       // [columns / 32]
    const int32_t *sums;  // [columns / 16]: of q
    const float *x;       // [columns]
};

constexpr int kTileRows = 16;    // output rows that lie interleaved
constexpr int kMostRows = 32;    // activation rows of one call of a tile kernel
constexpr int kPanelRows = 96;   // activation rows of one call of a panel kernel: a multiple of every group
constexpr int kMostPanelTiles = 2;
constexpr float kTiny = 7.888609052210118e-31f;  // 2^-100: a block below it is zero

// Tiles first .. end - 1 of a matrix; no matrix: none.
struct TileRun {
    const StrataMatrix *matrix;
    int64_t first, end;
};

// How panels (panel.h) lie for an instruction set.
struct PanelForm {
    int32_t tiles;                      // of one call
    int32_t packed_group, float_group;  // activation rows that lie interleaved
    int32_t bias;                       // what unpacked weights are larger by
};

struct KernelSet {
    void (*quantize)(const float *x, int32_t columns, int8_t *q, float *d, int32_t *sums);
    // out[i][r]: tile row r times rows[i], post scale included; count <= kMostRows. Packed codes.
    void (*packed_tile)(const StrataMatrix &matrix, int64_t tile, const Row *rows, int32_t count, float *out);
    // out[tile][r] of a run of tiles of a packed code times one row; `next` is what will be read after it.
    void (*packed_stream)(const TileRun &run, const TileRun &next, const Row &row, float *out);
    // The first for float codes.
    void (*float_tile)(const StrataMatrix &matrix, int64_t tile, const Row *rows, int32_t count, float *out);
    // out[i][16 * tiles]: the rows of `form.tiles` tiles from `tile` on times the rows of a panel, from a group's first
    // row on; count <= kPanelRows. Values of tiles that the matrix does not have mean nothing. Null: use the above.
    PanelForm form;
    void (*packed_panel)(const StrataMatrix &matrix, int64_t tile, const char *panel, int32_t count, float *out);
    void (*float_panel)(const StrataMatrix &matrix, int64_t tile, const char *panel, int32_t count, float *out);
    void (*silu_mul)(const float *gate, const float *up, float *h, int64_t count);
    // total = fma(weight, row, total) for every element.
    void (*add_scaled)(float weight, const float *row, float *total, int64_t count);
    void (*read_bytes)(const void *bytes, int64_t size);
    // Nothing but the integer dot product; returns how many weights were multiplied.
    int64_t (*multiply_only)(int64_t rounds);
};

extern const KernelSet kScalarKernels;
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvxVnniKernels;
extern const KernelSet kAvx512VnniKernels;

// The chosen instruction set's table (isa.cpp).
const KernelSet &kernels();

}  // namespace strata
