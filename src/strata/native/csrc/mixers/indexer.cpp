// See indexer.h.
#include "indexer.h"

#include <algorithm>
#include <functional>

#include "lanes.h"
#include "norm.h"

namespace strata {
namespace {

STRATA_CLONES void mean_rows(const float* rows, int count, int width, float* to) {
    for (int i = 0; i < width; i += kLanes) {
        Lanes sum = load_some(rows + i, width - i);
        for (int row = 1; row < count; ++row) sum += load_some(rows + int64_t{row} * width + i, width - i);
        store_some(to + i, sum / static_cast<float>(count), width - i);
    }
}

}  // namespace

void pool_block(const float* raw, const IndexShape& shape, const float* scale, const double* frequencies, int half,
                int64_t block, float* to) {
    float cos_sin[2 * kMostHalf];
    mean_rows(raw, shape.ratio, shape.dim, to);
    rms_norm(to, scale, shape.dim, shape.eps, to);
    make_rotation(block * shape.ratio, frequencies, half, cos_sin);
    rotate(to, cos_sin, half);
}

STRATA_CLONES void score_blocks(
    const float* query, const float* keys, const IndexShape& shape, int64_t first, int64_t count, float* scores) {
    const float root = std::sqrt(static_cast<float>(shape.dim));
    for (int64_t block = first; block < first + count; ++block) {
        float sum = 0.0f;
        for (int head = 0; head < shape.heads; ++head) {
            const float product = dot(query + int64_t{head} * shape.dim, keys + block * shape.dim, shape.dim);
            sum += product < 0.0f ? 0.0f : product;  // NaN stays
        }
        scores[block] = sum / root;
    }
}

int64_t choose_cells(const float* scores, int64_t count, int wanted, int ratio, int64_t position,
                     std::vector<float>& work, int64_t* cells) {
    for (int64_t block = 0; block < count; ++block) {
        if (scores[block] != scores[block]) return -1;
    }
    work.assign(scores, scores + count);
    std::nth_element(work.begin(), work.begin() + (wanted - 1), work.end(), std::greater<float>());
    const float threshold = work[wanted - 1];
    int64_t room = wanted, written = 0;  // of blocks at the threshold: what those above it leave
    for (int64_t block = 0; block < count; ++block) room -= scores[block] > threshold;
    for (int64_t block = 0; block < count; ++block) {
        const bool chosen = scores[block] > threshold || (scores[block] == threshold && room-- > 0);
        if (!chosen) continue;
        for (int cell = 0; cell < ratio; ++cell) cells[written++] = block * ratio + cell;
    }
    for (int64_t cell = count * ratio; cell <= position; ++cell) cells[written++] = cell;
    return written;
}

}  // namespace strata
