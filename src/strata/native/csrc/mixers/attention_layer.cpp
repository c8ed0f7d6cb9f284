// Attention over the rows of a window: heads made ready, cells written behind the committed ones, splits shared between
// threads, and the commit. Knows slots; the maths are in attention.cpp and indexer.cpp.
#include <algorithm>

#include "attention.h"
#include "indexer.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"

namespace strata {
namespace {

constexpr int64_t kBlockRun = 512;  // blocks that one piece of work scores

// Where things lie in a projected row: queries (each with its gate behind it), keys, values, indexer queries and key.
struct Columns {
    int64_t query_step, key, value, index_query, index_key;
    explicit Columns(const StrataAttention &part) {
        const int64_t kv = int64_t{part.kv_heads} * part.head_dim;
        query_step = int64_t{part.head_dim} * (part.has_gate ? 2 : 1);
        key = query_step * part.query_heads;
        value = key + kv;
        index_query = value + kv;
        index_key = index_query + int64_t{part.index_heads} * part.index_dim;
    }
};

IndexShape index_shape(const StrataAttention &part) {
    return {part.index_heads, part.index_dim, part.ratio, part.index_eps};
}

// Norms and rotates one row's queries and keys where they lie.
void prepare_row(const StrataAttention &part, const Columns &at, const float *cos_sin, int half, float *row) {
    for (int head = 0; head < part.query_heads; ++head) {
        float *query = row + head * at.query_step;
        if (part.query_scale) rms_norm(query, part.query_scale, part.head_dim, part.eps, query);
        rotate(query, cos_sin, half);
        scale_query(query, part.head_dim);
    }
    for (int head = 0; head < part.kv_heads; ++head) {
        float *key = row + at.key + int64_t{head} * part.head_dim;
        if (part.key_scale) rms_norm(key, part.key_scale, part.head_dim, part.eps, key);
        rotate(key, cos_sin, half);
    }
    for (int head = 0; head < part.index_heads; ++head) {
        float *query = row + at.index_query + int64_t{head} * part.index_dim;
        rms_norm(query, part.index_query_scale, part.index_dim, part.index_eps, query);
        rotate(query, cos_sin, half);
    }
}

// The rows of a window over one layer's cells.
class Attention {
public:
    Attention(const Part &part, const float *projected)
        : model_(part.model), window_(part.window), layer_(part.layer), weights_(model_.layers[layer_].attention),
          at_(weights_), width_(attention_width(weights_)), projected_(projected) {}

    void run(float *attended) {
        plan();
        score();
        const int64_t heads = int64_t{window_.rows} * weights_.query_heads;
        const int64_t floats = heads * most_splits_ * split_floats(weights_.head_dim);
        std::vector<float> &splits = model_.scratch.splits;
        if (static_cast<int64_t>(splits.size()) < floats) splits.resize(floats);
        attend();
        merge(attended);
    }

private:
    struct Row {
        int slot;
        int64_t position;
        int64_t cells = 0;  // that it sees
        const int64_t *ids = nullptr;  // null: all from 0 on
        int splits = 0;
    };

    const StrataLayerState &state(int slot) const {
        return window_.states[int64_t{slot} * model_.shape.layer_count + layer_];
    }
    float *result(int64_t row, int head, int split) const {
        const int64_t index = (row * weights_.query_heads + head) * most_splits_ + split;
        return model_.scratch.splits.data() + index * split_floats(weights_.head_dim);
    }

    void plan() {
        const int64_t dense = weights_.index_heads ? int64_t{weights_.budget} + weights_.ratio - 1 : INT64_MAX;
        for (int slot = 0; slot < window_.slots; ++slot) {
            for (int row = window_.bounds[slot]; row < window_.bounds[slot + 1]; ++row) {
                Row made{slot, window_.positions[slot] + row - window_.bounds[slot]};
                made.cells = made.position + 1;
                is_gathered_.push_back(made.position >= dense);
                gathered_ += made.position >= dense;
                rows_.push_back(made);
            }
        }
    }

    // Which cells the gathered rows take: scores in runs of blocks over all threads, then the choice row by row.
    void score() {
        if (gathered_) score_gathered();
        for (size_t row = 0; row < rows_.size(); ++row) {
            const int split = is_gathered_[row] ? kGatherSplit : kKeySplit;
            rows_[row].splits = static_cast<int>((rows_[row].cells + split - 1) / split);
            most_splits_ = std::max(most_splits_, rows_[row].splits);
        }
    }

    void score_gathered() {
        int64_t most = 0;
        for (const Row &row : rows_) most = std::max(most, (row.position + 1) / weights_.ratio);
        const int64_t runs = (most + kBlockRun - 1) / kBlockRun, count = static_cast<int64_t>(rows_.size());
        const int64_t cell_room = int64_t{weights_.budget} + weights_.ratio;
        scores_.resize(count * most);
        model_.scratch.cells.resize(count * cell_room);
        for_items(model_.pool, count * runs, [&](int64_t item, int) {
            const int64_t row = item / runs, first = item % runs * kBlockRun;
            const int64_t last = std::min((rows_[row].position + 1) / weights_.ratio, first + kBlockRun);
            if (!is_gathered_[row] || last <= first) return;
            score_blocks(projected_ + row * width_ + at_.index_query, state(rows_[row].slot).pooled,
                         index_shape(weights_), first, last - first, scores_.data() + row * most);
        });
        std::vector<float> work;
        for (int64_t row = 0; row < count; ++row) {
            if (!is_gathered_[row]) continue;
            int64_t *cells = model_.scratch.cells.data() + row * cell_room;
            const int64_t chosen =
                choose_cells(scores_.data() + row * most, (rows_[row].position + 1) / weights_.ratio,
                             weights_.budget / weights_.ratio, weights_.ratio, rows_[row].position, work, cells);
            if (chosen < 0) *window_.is_finite = 0;
            rows_[row].cells = std::max<int64_t>(chosen, 1);
            rows_[row].ids = cells;
            if (chosen < 0) cells[0] = 0;
        }
    }

    void attend() {
        const int64_t pieces = int64_t{weights_.kv_heads} * most_splits_, rows = static_cast<int64_t>(rows_.size());
        for_items(model_.pool, rows * pieces, [&](int64_t item, int) {
            // rows innermost: those of one slot find a split's cells in the cache
            const int64_t row = item % rows, piece = item / rows;
            attend_piece(row, static_cast<int>(piece % weights_.kv_heads), static_cast<int>(piece / weights_.kv_heads));
        });
    }

    void attend_piece(int64_t row, int kv_head, int split) {
        const Row &seen = rows_[row];
        if (split >= seen.splits) return;
        const StrataLayerState &slot = state(seen.slot);
        const int64_t offset = int64_t{kv_head} * weights_.head_dim;
        const Cells cells{slot.keys + offset, slot.values + offset, int64_t{weights_.kv_heads} * weights_.head_dim,
                          weights_.head_dim};
        const int64_t size = seen.ids ? kGatherSplit : kKeySplit, first = split * size;
        const int count = static_cast<int>(std::min(size, seen.cells - first));
        const int group = weights_.query_heads / weights_.kv_heads;
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            const float *query = projected_ + row * width_ + head * at_.query_step;
            attend_split(query, cells, seen.ids ? seen.ids + first : nullptr, first, count, result(row, head, split));
        }
    }

    void merge(float *attended) {
        const int64_t out_width = int64_t{weights_.query_heads} * weights_.head_dim;
        for (size_t row = 0; row < rows_.size(); ++row) {
            for (int head = 0; head < weights_.query_heads; ++head) {
                float *to = attended + row * out_width + int64_t{head} * weights_.head_dim;
                merge_splits(result(row, head, 0), rows_[row].splits, weights_.head_dim, to);
                const float *query = projected_ + row * width_ + head * at_.query_step;
                if (weights_.has_gate) sigmoid_times(to, query + weights_.head_dim, weights_.head_dim, to);
            }
        }
    }

    StrataModel &model_;
    const StrataWindow &window_;
    const int layer_;
    const StrataAttention &weights_;
    const Columns at_;
    const int64_t width_;
    const float *projected_;
    std::vector<Row> rows_;
    std::vector<char> is_gathered_;
    std::vector<float> scores_;
    int gathered_ = 0;
    int most_splits_ = 1;
};

}  // namespace

void write_cells(const StrataModel &model, const StrataAttention &part, const float *projected, int rows,
                 int64_t position, const StrataLayerState &state) {
    const Columns at(part);
    const int64_t width = attention_width(part), kv = int64_t{part.kv_heads} * part.head_dim;
    for (int row = 0; row < rows; ++row) {
        const float *from = projected + row * width;
        std::copy_n(from + at.key, kv, state.keys + (position + row) * kv);
        std::copy_n(from + at.value, kv, state.values + (position + row) * kv);
        if (!part.index_heads) continue;
        std::copy_n(from + at.index_key, part.index_dim, state.raw + (position + row) * part.index_dim);
    }
    if (!part.index_heads) return;
    for (int64_t block = position / part.ratio; block < (position + rows) / part.ratio; ++block) {
        pool_block(state.raw + block * part.ratio * part.index_dim, index_shape(part), part.index_key_scale,
                   model.shape.frequencies, model.shape.rotary_half, block, state.pooled + block * part.index_dim);
    }
}

void run_attention(const Part &part, const float *x, float *output) {
    StrataModel &model = part.model;
    const StrataWindow &window = part.window;
    const StrataAttention &weights = model.layers[part.layer].attention;
    const int64_t width = attention_width(weights), half = model.shape.rotary_half;
    const int hidden = model.shape.hidden, rows = window.rows;
    float *projected = model.stored_rows(window, part.layer), *attended = model.scratch.attended.data();
    {
        const Clock clock(model.times.dense);
        if (weights.index_heads) {
            multiply(model.pool, {&weights.qkv, &weights.index}, x, rows, hidden, projected, width);
        } else {
            multiply(model.pool, {&weights.qkv}, x, rows, hidden, projected, width);
        }
    }
    {
        const Clock clock(model.times.mixers);
        const Columns at(weights);
        for (int row = 0; row < rows; ++row) {
            const float *cos_sin = model.scratch.rotation.data() + row * 2 * half;
            prepare_row(weights, at, cos_sin, static_cast<int>(half), projected + row * width);
        }
        for (int slot = 0; slot < window.slots; ++slot) {
            const int first = window.bounds[slot];
            write_cells(model, weights, projected + first * width, window.bounds[slot + 1] - first,
                        window.positions[slot], window.states[int64_t{slot} * model.shape.layer_count + part.layer]);
        }
        Attention(part, projected).run(attended);
    }
    const Clock clock(model.times.dense);
    const int64_t out_width = int64_t{weights.query_heads} * weights.head_dim;
    multiply(model.pool, {&weights.out}, attended, rows, out_width, output, hidden);
}

}  // namespace strata
