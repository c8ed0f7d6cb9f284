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

STRATA_INLINE const float* cell_of(const float* base, const Cells& cells, const CellRun& run, int j) {
    return base + (run.ids ? run.ids[j] : run.first + j) * cells.stride;
}

// Scores of some heads over a run, then their shares of it; each key is loaded once for all heads.
template <int heads>
STRATA_INLINE void share_out(const Cells& cells, const CellRun& run, const float* const* queries,
                             float (*shares)[kKeySplit], float* const* results) {
    Lanes peaks[heads];
    for (int h = 0; h < heads; ++h) peaks[h] = same(-__builtin_inff());
    for (int j = 0; j < run.count; j += kLanes) {
        Lanes sums[heads][kLanes] = {};
        for (int k = 0; k < kLanes && j + k < run.count; ++k) {
            const float* key = cell_of(cells.keys, cells, run, j + k);
            Lanes products[heads] = {};
            for (int d = 0; d < cells.head_dim; d += kLanes) {
                const Lanes part = load_some(key + d, cells.head_dim - d);
                for (int h = 0; h < heads; ++h) products[h] += load_some(queries[h] + d, cells.head_dim - d) * part;
            }
            for (int h = 0; h < heads; ++h) sums[h][k] = products[h];
        }
        for (int h = 0; h < heads; ++h) {
            Lanes scores = sums_of(sums[h]);
            for (int k = run.count - j; k < kLanes; ++k) scores[k] = -__builtin_inff();
            peaks[h] = larger(peaks[h], scores);
            store(shares[h] + j, scores);
        }
    }
    for (int h = 0; h < heads; ++h) {
        const float peak = largest_of(peaks[h]);
        Lanes totals = {};
        for (int j = 0; j < run.count; j += kLanes) {
            Lanes share = exp_of(load(shares[h] + j) - peak);
            for (int k = run.count - j; k < kLanes; ++k) share[k] = 0.0f;
            totals += share;
            store(shares[h] + j, share);
        }
        results[h][0] = peak;
        results[h][1] = sum_of(totals);
    }
}

// The values of a run mixed by the heads' shares, `parts` lane vectors from column d on; `width` columns are left.
template <int heads, int parts>
STRATA_INLINE void mix(const Cells& cells, const CellRun& run, const float (*shares)[kKeySplit], int d, int width,
                       float* const* results) {
    Lanes mixed[heads][parts] = {};
    for (int j = 0; j < run.count; ++j) {
        const float* value = cell_of(cells.values, cells, run, j) + d;
        for (int p = 0; p < parts; ++p) {
            const Lanes values = load_some(value + p * kLanes, width - p * kLanes);
            for (int h = 0; h < heads; ++h) mixed[h][p] += values * shares[h][j];
        }
    }
    for (int h = 0; h < heads; ++h) {
        for (int p = 0; p < parts; ++p) {
            store_some(results[h] + 2 + d + p * kLanes, mixed[h][p], width - p * kLanes);
        }
    }
}

template <int heads>
STRATA_INLINE void attend_heads(const Cells& cells, const CellRun& run, const float* const* queries,
                                float* const* results) {
    alignas(64) float shares[heads][kKeySplit];
    share_out<heads>(cells, run, queries, shares, results);
    int d = 0;
    for (; d + 4 * kLanes <= cells.head_dim; d += 4 * kLanes) mix<heads, 4>(cells, run, shares, d, 4 * kLanes, results);
    for (; d < cells.head_dim; d += kLanes) mix<heads, 1>(cells, run, shares, d, cells.head_dim - d, results);
}

}  // namespace

STRATA_CLONES void attend_split(
    const Cells& cells, const CellRun& run, const float* const* queries, int heads, float* const* results) {
    for (; heads >= 4; heads -= 4, queries += 4, results += 4) attend_heads<4>(cells, run, queries, results);
    if (heads == 3) attend_heads<3>(cells, run, queries, results);
    if (heads == 2) attend_heads<2>(cells, run, queries, results);
    if (heads == 1) attend_heads<1>(cells, run, queries, results);
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
