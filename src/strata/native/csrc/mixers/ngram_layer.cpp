// The hashed n-gram embedding over the rows of a window: hash, gather, gate, dilated convolution. Knows slots.
#include <algorithm>

#include "delta_net.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"
#include "table.h"

namespace strata {
namespace {

// The token `reach` places before row `row` of a slot; histories are ngram_size - 1 long.
int64_t token_at(const StrataNgram &ngram, const int64_t *history, const int64_t *tokens, int row, int reach) {
    const int at = row - reach;
    return at >= 0 ? tokens[at] : history[ngram.ngram_size - 1 + at];
}

// The table's rows of one row's n-grams. One never reaches back over an end of text: older tokens count as one.
void gather_row(const StrataNgram &ngram, const int64_t *history, const int64_t *tokens, int row, float *to) {
    const int heads = (ngram.ngram_size - 1) * ngram.heads_per_ngram, width = ngram.embed_dim / heads;
    int64_t mixed = token_at(ngram, history, tokens, row, 0) * ngram.multipliers[0], offset = 0;
    bool is_over = false;
    for (int reach = 1, head = 0; reach < ngram.ngram_size; ++reach) {
        const int64_t back = is_over ? ngram.end_of_text : token_at(ngram, history, tokens, row, reach);
        is_over = is_over || back == ngram.end_of_text;
        mixed ^= back * ngram.multipliers[reach];
        for (int each = 0; each < ngram.heads_per_ngram; ++each, ++head) {
            table_row(ngram.table, mixed % ngram.head_sizes[head] + offset, to + head * width);
            offset += ngram.head_sizes[head];
        }
    }
}

// The value of each stream, opened by how well the key fits the stream.
STRATA_CLONES void gate_values(
    const float *keys, const float *queries, const float *value, int streams, int64_t hidden, float *gated) {
    const float root = std::sqrt(static_cast<float>(hidden));
    for (int stream = 0; stream < streams; ++stream) {
        const float match = dot(keys + stream * hidden, queries + stream * hidden, hidden) / root;
        const float size = match < 0.0f ? -match : match;
        const float open = std::sqrt(size < 1e-6f ? 1e-6f : size);
        const float strength = sigmoid_of(match > 0.0f ? open : match < 0.0f ? -open : match * open);  // NaN stays
        for (int64_t i = 0; i < hidden; i += kLanes) {
            store_some(gated + stream * hidden + i, load_some(value + i, hidden - i) * strength, hidden - i);
        }
    }
}

}  // namespace

void add_ngrams(const Part &part, float *streams) {
    StrataModel &model = part.model;
    const StrataWindow &window = part.window;
    const StrataNgram &ngram = model.layers[part.layer].ngram;
    const int64_t width = model.width();
    const int tail_rows = (ngram.conv_kernel - 1) * ngram.ngram_size, count = model.shape.streams;
    const float eps = model.shape.eps;
    Scratch &scratch = model.scratch;
    const Stored &stored = model.stored[part.layer];
    float *normed = part.stored + (stored.width() - stored.ngram) * window.rows;
    const float *rows = window.ngram_rows ? window.ngram_rows[part.layer] : nullptr;
    if (!rows) {
        for (int slot = 0; slot < window.slots; ++slot) {
            const int first = window.bounds[slot];
            const int64_t *history = window.states[int64_t{slot} * model.shape.layer_count + part.layer].history;
            for_rows(model.pool, window.bounds[slot + 1] - first, ngram.embed_dim, [&](int64_t row, int) {
                gather_row(ngram, history, window.token_ids + first, static_cast<int>(row),
                           scratch.embeddings.data() + (first + row) * ngram.embed_dim);
            });
        }
        rows = scratch.embeddings.data();
    }
    float *keys = scratch.gates.data(), *queries = scratch.normed.data(), *values = scratch.values.data();
    const int64_t both = width + model.shape.hidden;
    multiply(model.pool, {&ngram.key, &ngram.value}, rows, window.rows, ngram.embed_dim, values, both);
    for (int slot = 0; slot < window.slots; ++slot) {
        const int64_t first = window.bounds[slot];
        const float *tail = window.states[int64_t{slot} * model.shape.layer_count + part.layer].ngram_tail;
        const int64_t rows_of_slot = window.bounds[slot + 1] - first;
        for_rows(model.pool, rows_of_slot, width, [&](int64_t offset, int) {
            const int64_t row = first + offset;
            float *key = values + row * both, *gated = keys + row * width, *query = queries + row * width;
            grouped_rms_norm(key, ngram.key_scale, width, count, eps, key);
            grouped_rms_norm(streams + row * width, ngram.query_scale, width, count, eps, query);
            gate_values(key, query, key + width, count, model.shape.hidden, gated);
            grouped_rms_norm(gated, ngram.conv_scale, width, count, eps, normed + row * width);
        });
        for_rows(model.pool, rows_of_slot, width, [&](int64_t offset, int) {
            const int64_t row = first + offset;
            float *gated = keys + row * width, *convolved = queries + row * width;
            const float *past[kMostTaps];
            for (int tap = 0; tap < ngram.conv_kernel; ++tap) {
                const int64_t back = row - first - tail_rows + int64_t{tap} * ngram.ngram_size;
                past[tap] = row_or_tail(tail, tail_rows, normed + first * width, width, width, back);
            }
            convolve_row(past, ngram.conv, ngram.conv_kernel, width, convolved);
            add_row(convolved, width, gated);
            add_row(gated, width, streams + row * width);
        });
    }
}

void commit_ngrams(const Part &part, int slot, int accepted, const StrataLayerState &state,
                   const StrataNewState &replaced) {
    StrataModel &model = part.model;
    const StrataNgram &ngram = model.layers[part.layer].ngram;
    const Stored &stored = model.stored[part.layer];
    const int64_t width = model.width(), first = part.window.bounds[slot];
    const int tail_rows = (ngram.conv_kernel - 1) * ngram.ngram_size, history = ngram.ngram_size - 1;
    const float *normed = part.stored + (stored.width() - stored.ngram) * part.window.rows + first * width;
    for (int row = 0; row < tail_rows; ++row) {
        const float *from = row_or_tail(state.ngram_tail, tail_rows, normed, width, width, accepted - tail_rows + row);
        std::copy_n(from, width, replaced.ngram_tail + row * width);
    }
    for (int place = 0; place < history; ++place) {
        const int at = accepted - history + place;
        replaced.history[place] = at < 0 ? state.history[history + at] : part.window.token_ids[first + at];
    }
}

}  // namespace strata
