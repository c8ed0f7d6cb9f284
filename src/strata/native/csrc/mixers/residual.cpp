// Residual streams (hyper-connections): reading them into a layer's input, writing its output back, the draft layer's
// join. Knows whole rows of a window.
#include "lanes.h"
#include "model.h"
#include "norm.h"
#include "table.h"

namespace strata {
namespace {

// mean over streams of sigmoid(gate) * normed
STRATA_CLONES void mix_row(const float *gates, const float *normed, int streams, int64_t hidden, float *to) {
    const float share = 1.0f / static_cast<float>(streams);
    for (int64_t i = 0; i < hidden; i += kLanes) {
        const int64_t count = hidden - i;
        Lanes sum = {};
        for (int stream = 0; stream < streams; ++stream) {
            const int64_t at = stream * hidden + i;
            sum += sigmoid_of(load_some(gates + at, count)) * load_some(normed + at, count);
        }
        store_some(to + i, sum * share, count);
    }
}

STRATA_CLONES void write_row(const float *output, const float *strengths, int streams, int64_t hidden, float *row) {
    for (int stream = 0; stream < streams; ++stream) {
        float *to = row + stream * hidden;
        const float strength = strengths[stream];
        for (int64_t i = 0; i < hidden; i += kLanes) {
            const int64_t count = hidden - i;
            store_some(to + i, load_some(to + i, count) + load_some(output + i, count) * strength, count);
        }
    }
}

// The published down map is divided by the number of streams; strengths become 2 * sigmoid.
STRATA_CLONES void finish_low(float *low, int low_rank, int outputs, int streams) {
    const float share = 1.0f / static_cast<float>(streams);
    for (int i = 0; i < outputs; i += kLanes) store_some(low + i, load_some(low + i, outputs - i) * share, outputs - i);
    silu_times(low, nullptr, low_rank, low);
    for (int i = low_rank; i < outputs; ++i) low[i] = 2.0f * sigmoid_of(low[i]);
}

}  // namespace

void read_streams(StrataModel &model, const StrataResidual &weights, const float *streams, int rows, float *x) {
    const int64_t width = model.width(), outputs = weights.down.outputs;
    Scratch &scratch = model.scratch;
    float *normed = scratch.normed.data(), *low = scratch.low.data(), *gates = scratch.gates.data();
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        grouped_rms_norm(streams + row * width, weights.norm_scale, width, model.shape.streams, model.shape.eps,
                         normed + row * width);
    });
    multiply(model.pool, {&weights.down}, normed, rows, width, low, outputs);
    for_rows(model.pool, rows, outputs, [&](int64_t row, int) {
        finish_low(low + row * outputs, weights.low_rank, static_cast<int>(outputs), model.shape.streams);
    });
    multiply(model.pool, {&weights.up}, low, rows, outputs, gates, width);
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        const int64_t at = row * width;
        mix_row(gates + at, normed + at, model.shape.streams, model.shape.hidden, x + row * model.shape.hidden);
    });
}

void write_streams(
    StrataModel &model, const StrataResidual &weights, const float *output, int rows, float *streams) {
    const float *low = model.scratch.low.data();
    const int hidden = model.shape.hidden;
    const int64_t width = model.width();
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        write_row(output + row * hidden, low + row * weights.down.outputs + weights.low_rank, model.shape.streams, hidden,
                  streams + row * width);
    });
}

void join_streams(StrataModel &model, const StrataWindow &window, float *streams) {
    const StrataJoin &join = model.shape.join;
    const int rows = window.rows, hidden = model.shape.hidden;
    const int64_t width = model.width();
    Scratch &scratch = model.scratch;
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        float *embedding = scratch.mixed.data() + row * hidden;
        table_row(model.shape.embedding, window.token_ids[row], embedding);
        rms_norm(embedding, join.embedding_scale, hidden, model.shape.eps, embedding);
        rms_norm(window.joined_hidden + row * width, join.hidden_scale, width, model.shape.eps,
                 scratch.normed.data() + row * width);
    });
    multiply(model.pool, {&join.embedding_map}, scratch.mixed.data(), rows, hidden, scratch.output.data(), hidden);
    // the map is the same for every stream, so the streams are its rows
    multiply(model.pool, {&join.hidden_map}, scratch.normed.data(), rows * model.shape.streams, hidden, streams, hidden);
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        for (int stream = 0; stream < model.shape.streams; ++stream) {
            add_row(scratch.output.data() + row * hidden, hidden, streams + row * width + stream * hidden);
        }
    });
}

}  // namespace strata
