// See attention.h. Scores of sixteen keys are summed together: the lanes' sums of each key are added in the same order
// (+8, +4, +2, +1) as those of a single key would be.
#include "attention.h"

#include <algorithm>
#include <type_traits>

#include "cell_codes.h"
#include "lanes.h"

namespace strata {
namespace {

constexpr int kValueRun = 64;      // cells whose values are decoded together, in columns that share a scale:
constexpr int kValueColumns = 64;  // 16 KiB, which stay in the L1 cache
static_assert(kValueRun * kValueColumns <= kLanes * kMostHeadDim, "values have the room of keys");

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

// Cells first .. first + count - 1 of a run, columns d .. d + width - 1: where their values lie as float32. Those of
// other codes are decoded, once for all heads.
STRATA_INLINE void find_rows(const CellSide &side, const CellRun &run, int first, int count, int head_dim, int d,
                             int width, float *decoded, const float **rows) {
    const int room = (width + kLanes - 1) / kLanes * kLanes;
    for (int j = 0; j < count; ++j) {
        const int64_t cell = run.ids ? run.ids[first + j] : run.first + first + j;
        const char *codes = side.codes + cell * side.code_stride;
        if (side.code == STRATA_CELL_F32) {
            rows[j] = reinterpret_cast<const float *>(codes) + d;
            continue;
        }
        float *row = decoded + j * room;
        decode_columns(side.code, codes, side.scales + cell * side.scale_stride, head_dim, d, width, row);
        rows[j] = row;
    }
}

// Products of some heads with `keys` keys, summed lane by lane; a query's lanes are loaded once for all keys.
template <int heads, int keys>
STRATA_INLINE void multiply_keys(
    const float *const *queries, const float *const *rows, int head_dim, Lanes (*sums)[kLanes], int at) {
    Lanes products[keys][heads] = {};
    for (int d = 0; d < head_dim; d += kLanes) {
        Lanes parts[keys];
        for (int k = 0; k < keys; ++k) parts[k] = load_some(rows[k] + d, head_dim - d);
        for (int h = 0; h < heads; ++h) {
            const Lanes query = load_some(queries[h] + d, head_dim - d);
            for (int k = 0; k < keys; ++k) products[k][h] += query * parts[k];
        }
    }
    for (int h = 0; h < heads; ++h) {
        for (int k = 0; k < keys; ++k) sums[h][at + k] = products[k][h];
    }
}

// Scores of some heads over up to sixteen keys.
template <int heads>
STRATA_INLINE void score(const float *const *queries, const float *const *rows, int count, int head_dim,
                         float (*scores)[kKeySplit], int at) {
    constexpr int keys = 8 / heads;  // sums that do not wait for each other, as many as registers hold
    Lanes sums[heads][kLanes] = {};
    int k = 0;
    for (; k + keys <= count; k += keys) multiply_keys<heads, keys>(queries, rows + k, head_dim, sums, k);
    for (; k < count; ++k) multiply_keys<heads, 1>(queries, rows + k, head_dim, sums, k);
    for (int h = 0; h < heads; ++h) {
        Lanes all = sums_of(sums[h]);
        for (int rest = count; rest < kLanes; ++rest) all[rest] = -__builtin_inff();
        store(scores[h] + at, all);
    }
}

// Scores of a head, which become its shares, and the result's peak and total.
STRATA_INLINE void share_out(float *scores, int count, float *result) {
    Lanes peaks = same(-__builtin_inff());
    for (int j = 0; j < count; j += kLanes) peaks = larger(peaks, load(scores + j));
    const float peak = largest_of(peaks);
    Lanes totals = {};
    for (int j = 0; j < count; j += kLanes) {
        Lanes share = exp_of(load(scores + j) - peak);
        for (int k = count - j; k < kLanes; ++k) share[k] = 0.0f;
        totals += share;
        store(scores + j, share);
    }
    result[0] = peak;
    result[1] = sum_of(totals);
}

// Adds `count` rows of values, mixed by the heads' shares, to the results: `parts` lane vectors, `width` columns.
template <int heads, int parts>
STRATA_INLINE void mix(const float *const *values, int count, const float (*shares)[kKeySplit], int at, int width,
                       float *const *results, int d) {
    Lanes mixed[heads][parts];
    for (int h = 0; h < heads; ++h) {
        for (int p = 0; p < parts; ++p) {
            mixed[h][p] = load_some(results[h] + 2 + d + p * kLanes, width - p * kLanes);
        }
    }
    for (int j = 0; j < count; ++j) {
        for (int p = 0; p < parts; ++p) {
            const Lanes part = load_some(values[j] + p * kLanes, width - p * kLanes);
            for (int h = 0; h < heads; ++h) mixed[h][p] += part * shares[h][at + j];
        }
    }
    for (int h = 0; h < heads; ++h) {
        for (int p = 0; p < parts; ++p) {
            store_some(results[h] + 2 + d + p * kLanes, mixed[h][p], width - p * kLanes);
        }
    }
}

// The same for any width up to kValueColumns.
template <int heads>
STRATA_INLINE void mix_columns(const float *const *values, int count, const float (*shares)[kKeySplit], int at,
                               int width, float *const *results, int d) {
    if (width == kValueColumns) {
        return mix<heads, kValueColumns / kLanes>(values, count, shares, at, kValueColumns, results, d);
    }
    const float *rows[kValueRun];
    for (int done = 0; done < width; done += kLanes) {
        for (int j = 0; j < count; ++j) rows[j] = values[j] + done;
        mix<heads, 1>(rows, count, shares, at, width - done, results, d + done);
    }
}

// Calls work(first head, number of them as a constant) for runs of up to four heads.
template <class F>
STRATA_INLINE void for_heads(int heads, F &&work) {
    int h = 0;
    for (; h + 4 <= heads; h += 4) work(h, std::integral_constant<int, 4>{});
    if (heads - h == 3) work(h, std::integral_constant<int, 3>{});
    if (heads - h == 2) work(h, std::integral_constant<int, 2>{});
    if (heads - h == 1) work(h, std::integral_constant<int, 1>{});
}

}  // namespace

STRATA_CLONES void attend_split(const Cells &cells, const CellRun &run, const float *const *queries, int heads,
                                float *const *results) {
    alignas(64) float decoded[kLanes * kMostHeadDim];  // sixteen keys, or kValueRun rows of kValueColumns
    alignas(64) float shares[kMostGroup][kKeySplit];
    const float *rows[kValueRun];
    const int head_dim = cells.head_dim;
    for (int j = 0; j < run.count; j += kLanes) {
        const int count = std::min(kLanes, run.count - j);
        find_rows(cells.keys, run, j, count, head_dim, 0, head_dim, decoded, rows);
        for_heads(heads, [&](int h, auto group) __attribute__((always_inline)) {
            score<group()>(queries + h, rows, count, head_dim, shares + h, j);
        });
    }
    for (int h = 0; h < heads; ++h) {
        share_out(shares[h], run.count, results[h]);
        std::memset(results[h] + 2, 0, sizeof(float) * head_dim);
    }
    for (int d = 0; d < head_dim; d += kValueColumns) {
        const int width = std::min(kValueColumns, head_dim - d);
        for (int j = 0; j < run.count; j += kValueRun) {
            const int count = std::min(kValueRun, run.count - j);
            find_rows(cells.values, run, j, count, head_dim, d, width, decoded, rows);
            for_heads(heads, [&](int h, auto group) __attribute__((always_inline)) {
                mix_columns<group()>(rows, count, shares + h, j, width, results + h, d);
            });
        }
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
