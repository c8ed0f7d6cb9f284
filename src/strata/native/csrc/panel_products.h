// Many activation rows times several matrices. Knows no code and no instruction set.
#pragma once

#include "matrix.h"

struct StrataPool;

namespace strata {

// From this many rows on, unpacking tiles once for all of them is faster than once for every four.
// Measured on a Zen 4 core: packed codes gain from 8 on (a quarter at 48), float codes from 32 on.
constexpr int64_t kManyRows = 8, kManyFloatRows = 32;

inline bool wants_panels(const KernelSet &set, int32_t code, int64_t rows) {
    return set.packed_panel && rows >= (is_packed(code) ? kManyRows : kManyFloatRows);
}

// The panel kernel for the matrix's code.
void run_panel(const KernelSet &set, const StrataMatrix &m, int64_t tile, const char *panel, int32_t count, float *out);

// What strata_matrices_rows does, for a kernel set that has panels and arguments that were checked.
void multiply_panels(StrataPool *pool, const KernelSet &set, const StrataProduct *products, int32_t product_count,
                     const float *x, int64_t count, int64_t x_stride);

}  // namespace strata
