// A model as windows see it: its description, scratch for some rows, clocks. Knows no layer's maths.
#pragma once

#include <chrono>
#include <initializer_list>
#include <vector>

#include "../pool.h"
#include "delta_net.h"
#include "indexer.h"
#include "mixers.h"

namespace strata {

constexpr int kMostTaps = 64;   // of a convolution

// Everything that is written between the first and the last operation of a window.
struct Scratch {
    int rows = 0;
    int64_t rotated_from = -1;  // position of the first row in `rotation`, where its rows are one slot's
    int rotated_rows = 0;
    std::vector<float> normed, low, gates, mixed, output, attended, splits, rotation, logits, weights, expert_rows,
        shared, shared_rows, shared_weights, values, embeddings, ordered;
    std::vector<int32_t> ids, job_rows, job_slots, job_experts;
    std::vector<StrataExpertJob> jobs;
    std::vector<int64_t> cells;
};

// How the stored rows of a layer lie one behind the other, in floats a row.
struct Stored {
    int64_t projected = 0, convolved = 0, gates = 0, ngram = 0;
    int64_t width() const { return projected + convolved + gates + ngram; }
};

class Clock {
public:
    explicit Clock(uint64_t &total) : total_(total), start_(std::chrono::steady_clock::now()) {}
    ~Clock() {
        using std::chrono::nanoseconds;
        total_ += std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now() - start_).count();
    }
    Clock(const Clock &) = delete;
    Clock &operator=(const Clock &) = delete;

private:
    uint64_t &total_;
    std::chrono::steady_clock::time_point start_;
};

struct Failure {
    int32_t status;
};
inline void require(int32_t status) {
    if (status != STRATA_OK) throw Failure{status};
}

// Rows are shared between threads where there is enough to do: 8,192 values take some 2 us, a wake-up about 1.
constexpr int64_t kFewValues = 8192;
template <class F>
void for_rows(StrataPool *pool, int64_t rows, int64_t width, F &&work) {
    if (rows * width < kFewValues) {
        for (int64_t row = 0; row < rows; ++row) work(row, 0);
        return;
    }
    for_items(pool, rows, work);
}

// y[:, part after part] = parts times x; `groups` read the same x and write side by side.
void multiply(StrataPool *pool, std::initializer_list<const StrataMatrices *> groups, const float *x, int rows,
              int64_t x_stride, float *y, int64_t y_stride);
// y [rows, outputs] = matrices whose columns may stand in an order of their own times x [rows, columns].
void multiply_ordered(StrataModel &model, const StrataMatrices &matrices, const float *x, int rows, float *y);

}  // namespace strata

struct StrataModel {
    StrataModelShape shape;
    StrataPool *pool;
    std::vector<StrataLayer> layers;
    std::vector<strata::Stored> stored;          // [layers]
    std::vector<int64_t> stored_before;          // [layers] floats a row of the layers before
    int64_t stored_width = 0;                    // of all layers
    int64_t widest_stored = 0;                   // of one
    strata::Scratch scratch;
    StrataTimes times{};

    int64_t width() const { return int64_t{shape.streams} * shape.hidden; }
    void make_room(int rows);
    // Where a window keeps the layer's stored rows.
    float *stored_rows(const StrataWindow &window, int layer) const {
        return window.stored + stored_before[layer] * window.rows;
    }
};

namespace strata {

inline DeltaShape shape_of(const StrataDeltaNet &net) {
    return {net.key_heads, net.value_heads, net.key_dim, net.value_dim, net.conv_kernel};
}
inline int64_t attention_width(const StrataAttention &part) {
    return part.qkv.outputs + (part.index_heads ? part.index.outputs : 0);
}

// The parts of a layer; x rows [rows, hidden] in, output rows [rows, hidden] out.
struct Part {
    StrataModel &model;
    const StrataWindow &window;
    int layer;
    float *stored;  // the layer's stored rows
};
void run_delta_net(const Part &part, const float *x, float *output);
void run_attention(const Part &part, const float *x, float *output);
void run_mlp(const Part &part, const float *x, float *output);
void add_ngrams(const Part &part, float *streams);
void join_streams(StrataModel &model, const StrataWindow &window, float *streams);

// Streams -> x [rows, hidden], strengths [rows, streams] inside scratch.low; and the write that follows.
void read_streams(StrataModel &model, const StrataResidual &weights, const float *streams, int rows, float *x);
void write_streams(
    StrataModel &model, const StrataResidual &weights, const float *output, int rows, float *streams);

// Projected rows `from` .. of a slot into the cells behind its committed ones, and the blocks that they complete.
void write_cells(const StrataModel &model, const StrataAttention &part, const float *projected, int rows,
                 int64_t position, const StrataLayerState &state);

// The stored rows of a slot after the tail that its state holds: rows [-tail, count) as pointers, for convolutions.
inline const float *row_or_tail(const float *tail, int tail_rows, const float *rows, int64_t stride, int64_t width,
                                int64_t row) {
    return row < 0 ? tail + (tail_rows + row) * width : rows + row * stride;
}

}  // namespace strata
