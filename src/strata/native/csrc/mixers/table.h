// Single rows of a packed matrix: embeddings and n-gram tables. Knows no window.
#pragma once

#include "mixers.h"

namespace strata {

// Row `row` of a matrix to float32 [columns]. The row must exist.
void matrix_row(const StrataMatrix &m, int64_t row, float *to);

// Row `row` of the parts, which lie one under another, to float32 [columns]. The row must exist.
void table_row(const StrataMatrices &table, int64_t row, float *to);

}  // namespace strata
