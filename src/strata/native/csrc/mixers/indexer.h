// The indexer of indexed attention: keys of complete blocks, their scores, the choice. Knows one row or one block.
#pragma once

#include <cstdint>
#include <vector>

namespace strata {

constexpr int kMostHalf = 512;  // rotated pairs of a head

struct IndexShape {
    int heads, dim, ratio;
    float eps;
};

// The key of one complete block: the mean of its `ratio` raw keys, normed, rotated to the block's first position.
void pool_block(const float* raw, const IndexShape& shape, const float* scale, const double* frequencies, int half,
                int64_t block, float* to);

// Scores >= 0 of the blocks first .. first + count of one row; query [heads, dim].
void score_blocks(
    const float* query, const float* keys, const IndexShape& shape, int64_t first, int64_t count, float* scores);

// The `wanted` best of `count` blocks in rising order, the lower index first among equals, as their cells and behind them
// the row's own open block up to `position`: cells [wanted * ratio + ratio - 1] at least. Returns the number of cells;
// -1 if a score is NaN. `work` is scratch.
int64_t choose_cells(const float* scores, int64_t count, int wanted, int ratio, int64_t position,
                     std::vector<float>& work, int64_t* cells);

}  // namespace strata
