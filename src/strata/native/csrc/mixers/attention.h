// Attention of one query head over float32 cells, split by split, and the ordered merge of the splits.
// Knows neither slots nor threads.
#pragma once

#include <cstdint>

namespace strata {

constexpr int kKeySplit = 512;     // absolute multiples: a row's splits do not depend on the rows beside it
constexpr int kGatherSplit = 256;  // of gathered cells in rising position

// Where cells lie: cell c of a kv head begins at base + c * stride.
struct Cells {
    const float* keys;
    const float* values;
    int64_t stride;  // floats from one cell to the next
    int head_dim;
};

// What one split leaves of one query head: peak, total and the head's mixed values, head_dim + 2 floats.
inline int64_t split_floats(int head_dim) { return head_dim + 2; }

// Query [head_dim], scaled, over `count` cells (at most 512) from cell `first` on; with `ids` over cells ids[0..count).
void attend_split(const float* query, const Cells& cells, const int64_t* ids, int64_t first, int count, float* result);

// Merges `splits` results in order into `to` [head_dim].
void merge_splits(const float* results, int splits, int head_dim, float* to);

// query * head_dim^-0.5 in place
void scale_query(float* query, int head_dim);

}  // namespace strata
