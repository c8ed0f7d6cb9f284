// Attention of query heads over the cells of one key head, split by split, and the ordered merge of the splits.
// Knows neither slots nor threads.
#pragma once

#include <cstdint>

namespace strata {

constexpr int kKeySplit = 512;     // absolute multiples: a row's splits do not depend on the rows beside it
constexpr int kGatherSplit = 256;  // of gathered cells in rising position
constexpr int kMostHeadDim = 512;
constexpr int kMostGroup = 16;     // query heads of a key head that go through its cells together

// Where the keys or the values of a kv head lie: of cell c its codes begin at codes + c * code_stride.
struct CellSide {
    int32_t code;  // StrataCellCode
    const char *codes;
    const uint16_t *scales;  // null where the code has none
    int64_t code_stride;     // bytes from one cell to the next
    int64_t scale_stride;    // scales from one cell to the next
};

struct Cells {
    CellSide keys, values;
    int head_dim;
};

// Some cells in a row, at most kKeySplit of them: `count` from cell `first` on, or with `ids` cells ids[0 .. count).
struct CellRun {
    const int64_t *ids;
    int64_t first;
    int count;
};

// What one split leaves of one query head: peak, total and the head's mixed values, head_dim + 2 floats.
inline int64_t split_floats(int head_dim) { return head_dim + 2; }

// Scaled queries [head_dim] of some heads over the same cells, each to its own result; a head has the bits it has alone.
// At most kMostGroup heads of at most kMostHeadDim values. Where keys are rotated queries must be, where values are the
// results are.
void attend_split(
    const Cells &cells, const CellRun &run, const float *const *queries, int heads, float *const *results);

// Merges `splits` results in order into `to` [head_dim].
void merge_splits(const float *results, int splits, int head_dim, float *to);

// query * head_dim^-0.5 in place
void scale_query(float *query, int head_dim);

}  // namespace strata
