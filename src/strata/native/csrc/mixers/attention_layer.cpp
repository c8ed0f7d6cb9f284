// Attention over the rows of a window: heads made ready, cells written behind the committed ones, splits shared between
// threads, and the commit. Knows slots; the maths are in attention.cpp and indexer.cpp.
#include <algorithm>
#include <atomic>

#include "attention.h"
#include "cell_codes.h"
#include "indexer.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"

namespace strata {
namespace {

constexpr int64_t kBlockRun = 512;  // blocks that one piece of work scores
constexpr int64_t kPassFloats = 4 << 20;  // scratch of the rows that pass at a time: 16 MiB, however many rows are read

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
        if (is_rotated(part.key_code)) rotate_head(query, part.head_dim);
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

// Cells of one side in memory: [cells, kv_heads, ...] of codes and of scales.
struct SideLayout {
    int32_t code;
    int64_t head_bytes, head_scales, cell_bytes, cell_scales;
    SideLayout(int32_t code, const StrataAttention &part)
        : code(code), head_bytes(code_bytes(code, part.head_dim)), head_scales(scale_count(code, part.head_dim)),
          cell_bytes(head_bytes * part.kv_heads), cell_scales(head_scales * part.kv_heads) {}

    CellSide of_head(const void *codes, const uint16_t *scales, int kv_head) const {
        const char *first = static_cast<const char *>(codes) + kv_head * head_bytes;
        return {code, first, scales ? scales + kv_head * head_scales : nullptr, cell_bytes, cell_scales};
    }
    void write(const StrataAttention &part, const float *heads, int64_t cell, void *codes, uint16_t *scales) const {
        char *to = static_cast<char *>(codes) + cell * cell_bytes;
        encode_cells(code, part.kv_heads, part.head_dim, heads, to, scales ? scales + cell * cell_scales : nullptr);
    }
};

// The rows of a window over one layer's cells.
class Attention {
public:
    Attention(const Part &part, const float *projected)
        : model_(part.model), window_(part.window), layer_(part.layer), weights_(model_.layers[layer_].attention),
          at_(weights_), keys_(weights_.key_code, weights_), values_(weights_.value_code, weights_),
          width_(attention_width(weights_)), projected_(projected) {}

    void run(float *attended) {
        for (first_ = 0; first_ < window_.rows; first_ += count_) {
            plan();
            score();
            const int64_t floats = count_ * weights_.query_heads * most_splits_ * split_floats(weights_.head_dim);
            std::vector<float> &splits = model_.scratch.splits;
            if (static_cast<int64_t>(splits.size()) < floats) splits.resize(floats);
            attend();
            merge(attended + first_ * weights_.query_heads * weights_.head_dim);
        }
    }

private:
    struct Row {
        int slot;
        int64_t position;
        int64_t cells;  // that it sees
        bool is_gathered;
        const int64_t *ids = nullptr;  // null: all from 0 on
        int splits = 0;
    };

    const StrataLayerState &state(int slot) const {
        return window_.states[int64_t{slot} * model_.shape.layer_count + layer_];
    }
    const float *projected(int64_t row) const { return projected_ + (first_ + row) * width_; }
    float *result(int64_t row, int head, int split) const {
        const int64_t index = (row * weights_.query_heads + head) * most_splits_ + split;
        return model_.scratch.splits.data() + index * split_floats(weights_.head_dim);
    }

    // The rows of the next pass: as many as their scratch allows.
    void plan() {
        const int64_t dense = weights_.index_heads ? int64_t{weights_.budget} + weights_.ratio - 1 : INT64_MAX;
        rows_.clear();
        count_ = gathered_ = 0;
        int64_t most = 0;
        int slot = 0;
        for (int64_t row = first_; row < window_.rows; ++row) {
            while (row >= window_.bounds[slot + 1]) ++slot;
            const int64_t position = window_.positions[slot] + row - window_.bounds[slot];
            most = std::max(most, row_floats(position, dense));
            if (count_ > 0 && (count_ + 1) * most > kPassFloats) break;
            rows_.push_back({slot, position, position + 1, position >= dense});
            gathered_ += position >= dense;
            ++count_;
        }
    }

    // Scratch of one row at most: results of its splits, scores of its blocks.
    int64_t row_floats(int64_t position, int64_t dense) const {
        const int64_t splits = std::min(position, dense) / kKeySplit + 1 + weights_.budget / kGatherSplit;
        const int64_t scores = position >= dense ? position / weights_.ratio : 0;
        return weights_.query_heads * splits * split_floats(weights_.head_dim) + scores;
    }

    // Which cells the gathered rows take: scores in runs of blocks over all threads, then the choice row by row.
    void score() {
        if (gathered_) score_gathered();
        most_splits_ = 1;
        for (Row &row : rows_) {
            const int split = row.is_gathered ? kGatherSplit : kKeySplit;
            row.splits = static_cast<int>((row.cells + split - 1) / split);
            most_splits_ = std::max(most_splits_, row.splits);
        }
    }

    void score_gathered() {
        int64_t most = 0;
        for (const Row &row : rows_) most = std::max(most, (row.position + 1) / weights_.ratio);
        const int64_t runs = (most + kBlockRun - 1) / kBlockRun;
        const int64_t cell_room = int64_t{weights_.budget} + weights_.ratio;
        scores_.resize(count_ * most);
        model_.scratch.cells.resize(count_ * cell_room);
        for_items(model_.pool, count_ * runs, [&](int64_t item, int) {
            const int64_t row = item / runs, first = item % runs * kBlockRun;
            const int64_t last = std::min((rows_[row].position + 1) / weights_.ratio, first + kBlockRun);
            if (!rows_[row].is_gathered || last <= first) return;
            score_blocks(projected(row) + at_.index_query, state(rows_[row].slot).pooled,
                         index_shape(weights_), first, last - first, scores_.data() + row * most);
        });
        std::atomic<bool> is_broken{false};
        for_rows(model_.pool, count_, most, [&](int64_t row, int) {
            if (!rows_[row].is_gathered) return;
            std::vector<float> work;
            int64_t *cells = model_.scratch.cells.data() + row * cell_room;
            const int64_t chosen =
                choose_cells(scores_.data() + row * most, (rows_[row].position + 1) / weights_.ratio,
                             weights_.budget / weights_.ratio, weights_.ratio, rows_[row].position, work, cells);
            if (chosen < 0) is_broken = true;
            rows_[row].cells = std::max<int64_t>(chosen, 1);
            rows_[row].ids = cells;
            if (chosen < 0) cells[0] = 0;
        });
        if (is_broken) *window_.is_finite = 0;
    }

    void attend() {
        const int64_t pieces = int64_t{weights_.kv_heads} * most_splits_;
        for_items(model_.pool, count_ * pieces, [&](int64_t item, int) {
            // rows innermost: those of one slot find a split's cells in the cache
            const int64_t row = item % count_, piece = item / count_;
            attend_piece(row, static_cast<int>(piece % weights_.kv_heads), static_cast<int>(piece / weights_.kv_heads));
        });
    }

    void attend_piece(int64_t row, int kv_head, int split) {
        const Row &seen = rows_[row];
        if (split >= seen.splits) return;
        const StrataLayerState &slot = state(seen.slot);
        const Cells cells{keys_.of_head(slot.keys, slot.key_scales, kv_head),
                          values_.of_head(slot.values, slot.value_scales, kv_head), weights_.head_dim};
        const int64_t size = seen.ids ? kGatherSplit : kKeySplit, first = split * size;
        const int count = static_cast<int>(std::min(size, seen.cells - first));
        const int group = weights_.query_heads / weights_.kv_heads;
        const CellRun run{seen.ids ? seen.ids + first : nullptr, first, count};
        const float *queries[kMostGroup];
        float *results[kMostGroup];
        for (int begin = 0; begin < group; begin += kMostGroup) {
            const int heads = std::min(kMostGroup, group - begin);
            for (int i = 0; i < heads; ++i) {
                const int head = kv_head * group + begin + i;
                queries[i] = projected(row) + head * at_.query_step;
                results[i] = result(row, head, split);
            }
            attend_split(cells, run, queries, heads, results);
        }
    }

    void merge(float *attended) {
        const int64_t out_width = int64_t{weights_.query_heads} * weights_.head_dim;
        for_rows(model_.pool, count_, out_width, [&](int64_t row, int) {
            for (int head = 0; head < weights_.query_heads; ++head) {
                float *to = attended + row * out_width + int64_t{head} * weights_.head_dim;
                merge_splits(result(row, head, 0), rows_[row].splits, weights_.head_dim, to);
                if (is_rotated(weights_.value_code)) rotate_head(to, weights_.head_dim);
                const float *query = projected(row) + head * at_.query_step;
                if (weights_.has_gate) sigmoid_times(to, query + weights_.head_dim, weights_.head_dim, to);
            }
        });
    }

    StrataModel &model_;
    const StrataWindow &window_;
    const int layer_;
    const StrataAttention &weights_;
    const Columns at_;
    const SideLayout keys_, values_;
    const int64_t width_;
    const float *projected_;
    std::vector<Row> rows_;  // of this pass: the window's rows from first_ on
    std::vector<float> scores_;
    int64_t first_ = 0, count_ = 0;
    int gathered_ = 0;
    int most_splits_ = 1;
};

}  // namespace

void write_cells(const StrataModel &model, const StrataAttention &part, const float *projected, int rows,
                 int64_t position, const StrataLayerState &state) {
    const Columns at(part);
    const SideLayout keys(part.key_code, part), values(part.value_code, part);
    const int64_t width = attention_width(part);
    for_rows(model.pool, rows, int64_t{part.kv_heads} * part.head_dim, [&](int64_t row, int) {
        const float *from = projected + row * width;
        keys.write(part, from + at.key, position + row, state.keys, state.key_scales);
        values.write(part, from + at.value, position + row, state.values, state.value_scales);
        if (part.index_heads) {
            std::copy_n(from + at.index_key, part.index_dim, state.raw + (position + row) * part.index_dim);
        }
    });
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
    float *projected = part.stored, *attended = model.scratch.attended.data();
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
        for_rows(model.pool, rows, width, [&](int64_t row, int) {
            const float *cos_sin = model.scratch.rotation.data() + row * 2 * half;
            prepare_row(weights, at, cos_sin, static_cast<int>(half), projected + row * width);
        });
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
