// See attention.h. Scores of sixteen keys are summed together: the lanes' sums of each key are added in the same order
// (+8, +4, +2, +1) as those of a single key would be.
#include "attention.h"

#include "lanes.h"

namespace strata {
namespace {

// One step of the sum of two keys at once: lanes of each that are `step` apart are added,
// and what is left of a and b lies side by side in runs of `step`.
template <int step>
STRATA_INLINE Lanes fold(Lanes a, Lanes b) {
    // a run of 2 * step lanes holds `step` lanes to be kept and `step` to be added to them
    IntLanes low, high;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int run = lane / (2 * step), place = lane % (2 * step);
        const int from = (place < step ? 0 : kLanes) + run * 2 * step + place % step;
        low[lane] = from;
        high[lane] = from + step;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

// Sums of sixteen lane vectors, lane l that of v[l].
STRATA_INLINE Lanes sums_of(const Lanes* v) {
    Lanes eight[8], four[4], two[2];
    for (int i = 0; i < 8; ++i) eight[i] = fold<8>(v[i], v[i + 8]);
    for (int i = 0; i < 4; ++i) four[i] = fold<4>(eight[i], eight[i + 4]);
    for (int i = 0; i < 2; ++i) two[i] = fold<2>(four[i], four[i + 2]);
    return fold<1>(two[0], two[1]);
}

STRATA_INLINE const float* cell_of(const float* base, const Cells& cells, const int64_t* ids, int64_t first, int j) {
    return base + (ids ? ids[j] : first + j) * cells.stride;
}

}  // namespace

STRATA_CLONES void attend_split(
    const float* query, const Cells& cells, const int64_t* ids, int64_t first, int count, float* result) {
    alignas(64) float shares[kKeySplit];
    const int dim = cells.head_dim;
    Lanes peaks = same(-__builtin_inff());
    for (int j = 0; j < count; j += kLanes) {
        Lanes sums[kLanes] = {};
        for (int k = 0; k < kLanes && j + k < count; ++k) {
            sums[k] = products(query, cell_of(cells.keys, cells, ids, first, j + k), dim);
        }
        Lanes scores = sums_of(sums);
        for (int k = count - j; k < kLanes; ++k) scores[k] = -__builtin_inff();
        peaks = larger(peaks, scores);
        store(shares + j, scores);
    }
    const float peak = largest_of(peaks);
    Lanes totals = {};
    for (int j = 0; j < count; j += kLanes) {
        Lanes share = exp_of(load(shares + j) - peak);
        for (int k = count - j; k < kLanes; ++k) share[k] = 0.0f;
        totals += share;
        store(shares + j, share);
    }
    result[0] = peak;
    result[1] = sum_of(totals);
    for (int d = 0; d < dim; d += 4 * kLanes) {
        Lanes mixed[4] = {};
        const int parts = dim - d >= 4 * kLanes ? 4 : (dim - d + kLanes - 1) / kLanes;
        for (int j = 0; j < count; ++j) {
            const float* value = cell_of(cells.values, cells, ids, first, j) + d;
            for (int p = 0; p < 4; ++p) {
                if (p < parts) mixed[p] += load_some(value + p * kLanes, dim - d - p * kLanes) * shares[j];
            }
        }
        for (int p = 0; p < parts; ++p) store_some(result + 2 + d + p * kLanes, mixed[p], dim - d - p * kLanes);
    }
}

STRATA_CLONES void merge_splits(const float* results, int splits, int head_dim, float* to) {
    const int64_t step = split_floats(head_dim);
    float peak = results[0], total = results[1];
    std::memcpy(to, results + 2, sizeof(float) * head_dim);
    for (int split = 1; split < splits; ++split) {
        const float* result = results + split * step;
        const float new_peak = peak < result[0] ? result[0] : peak;
        const float fade = exp_of(peak - new_peak), share = exp_of(result[0] - new_peak);
        total = total * fade + result[1] * share;
        for (int d = 0; d < head_dim; d += kLanes) {
            const int count = head_dim - d;
            const Lanes mixed = load_some(to + d, count) * fade + load_some(result + 2 + d, count) * share;
            store_some(to + d, mixed, count);
        }
        peak = new_peak;
    }
    for (int d = 0; d < head_dim; d += kLanes) {
        store_some(to + d, load_some(to + d, head_dim - d) / total, head_dim - d);
    }
}

STRATA_CLONES void scale_query(float* query, int head_dim) {
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    for (int d = 0; d < head_dim; d += kLanes) {
        store_some(query + d, load_some(query + d, head_dim - d) * factor, head_dim - d);
    }
}

}  // namespace strata
