// A packed matrix as the paths above the kernels see it: checks, sizes of its arrays, tiles.
// Knows no arithmetic and no thread.
#pragma once

#include "kernels.h"

namespace strata {

inline bool is_packed(int32_t code) { return code == STRATA_CODE2 || code == STRATA_CODE4 || code == STRATA_CODE8; }

inline int64_t tiles_of(const StrataMatrix &m) { return (m.rows + kTileRows - 1) / kTileRows; }

// Groups of columns that share a scale; only the last one of fp8 may be short.
inline int64_t sub_blocks_of(const StrataMatrix &m) { return (m.columns + m.sub_block - 1) / m.sub_block; }

// Everything but the pointers; 0 or an error of the ABI.
int32_t check_form(const StrataMatrix &m);
// The form, and that every array is there and begins at a multiple of 64 bytes.
int32_t check_matrix(const StrataMatrix *m);

// Bytes of codes, scales, super scales, mins, super mins; 0 = the kind has none. For a form that was checked.
struct ArrayBytes {
    int64_t of[5];
};
ArrayBytes array_bytes(const StrataMatrix &m);

// Bytes of one tile's codes: what a thread reads for it, but for scales.
inline int64_t tile_bytes(const StrataMatrix &m) { return array_bytes(m).of[0] / tiles_of(m); }

// The tile kernel for the matrix's code.
inline void run_tile(const KernelSet &set, const StrataMatrix &m, int64_t tile, const Row *rows, int32_t count,
                     float *out) {
    (is_packed(m.code) ? set.packed_tile : set.float_tile)(m, tile, rows, count, out);
}

// A run of tiles times one row.
inline void run_stream(const KernelSet &set, const TileRun &run, const TileRun &next, const Row &row, float *out) {
    if (is_packed(run.matrix->code)) return set.packed_stream(run, next, row, out);
    for (int64_t tile = run.first; tile < run.end; ++tile, out += kTileRows)
        set.float_tile(*run.matrix, tile, &row, 1, out);
}

}  // namespace strata
