// A window from token ids to logits and the commit of its rows: the order of a model's parts, and the C ABI around it.
// Knows no part's maths.
#include <algorithm>

#include "../errors.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"
#include "table.h"

namespace strata {

void commit_delta_net(const Part &part, int slot, int accepted, const StrataLayerState &state,
                      const StrataNewState &replaced);
void commit_ngrams(const Part &part, int slot, int accepted, const StrataLayerState &state,
                   const StrataNewState &replaced);

namespace {

STRATA_CLONES bool all_finite(const float *values, int64_t count) {
    Lanes sum = {};  // 0 * x is 0 unless x is not finite
    for (int64_t i = 0; i < count; i += kLanes) sum += load_some(values + i, count - i) * 0.0f;
    return sum_of(sum) == 0.0f;
}

void embed(const StrataModel &model, const StrataWindow &window) {
    const int64_t hidden = model.shape.hidden, width = model.width();
    for_rows(model.pool, window.rows, hidden, [&](int64_t row, int) {
        float *to = window.hidden + row * width;
        table_row(model.shape.embedding, window.token_ids[row], to);
        for (int stream = 1; stream < model.shape.streams; ++stream) std::copy_n(to, hidden, to + stream * hidden);
    });
}

// The rotation of every row. The layers of a read find that of their rows made by the layer before.
void rotate_rows(StrataModel &model, const StrataWindow &window) {
    const int half = model.shape.rotary_half;
    Scratch &scratch = model.scratch;
    const int64_t first = window.slots == 1 ? window.positions[0] : -1;
    if (first >= 0 && scratch.rotated_from == first && scratch.rotated_rows == window.rows) return;
    for (int slot = 0; slot < window.slots; ++slot) {
        const int64_t begin = window.bounds[slot];
        for_rows(model.pool, window.bounds[slot + 1] - begin, kFewValues / 64, [&](int64_t row, int) {
            make_rotation(window.positions[slot] + row, model.shape.frequencies, half,
                          scratch.rotation.data() + (begin + row) * 2 * half);
        });
    }
    scratch.rotated_from = first;
    scratch.rotated_rows = window.rows;
}

// What a part reads, and what becomes of its output: residual streams or a plain residual sum.
void enter(StrataModel &model, const StrataWindow &window, const StrataResidual &residual, const float *norm) {
    const Clock clock(model.times.residuals);
    const int hidden = model.shape.hidden;
    float *x = model.scratch.mixed.data();
    if (model.shape.streams > 1) return read_streams(model, residual, window.hidden, window.rows, x);
    for_rows(model.pool, window.rows, hidden, [&](int64_t row, int) {
        rms_norm(window.hidden + row * hidden, norm, hidden, model.shape.eps, x + row * hidden);
    });
}

void leave(StrataModel &model, const StrataWindow &window, const StrataResidual &residual) {
    const Clock clock(model.times.residuals);
    const float *output = model.scratch.output.data();
    if (model.shape.streams > 1) return write_streams(model, residual, output, window.rows, window.hidden);
    const int64_t hidden = model.shape.hidden;
    for_rows(model.pool, window.rows, hidden, [&](int64_t row, int) {
        add_row(output + row * hidden, hidden, window.hidden + row * hidden);
    });
}

void run_layer(const Part &part) {
    StrataModel &model = part.model;
    const StrataWindow &window = part.window;
    const StrataLayer &layer = model.layers[part.layer];
    float *x = model.scratch.mixed.data(), *output = model.scratch.output.data();
    if (layer.ngram.key.count) {
        const Clock clock(model.times.mixers);
        add_ngrams(part, window.hidden);
    }
    enter(model, window, layer.mixer_residual, layer.mixer_norm);
    (layer.is_attention ? run_attention : run_delta_net)(part, x, output);
    leave(model, window, layer.mixer_residual);
    enter(model, window, layer.mlp_residual, layer.mlp_norm);
    run_mlp(part, x, output);
    leave(model, window, layer.mlp_residual);
}

void run_head(StrataModel &model, const StrataWindow &window) {
    const int count = window.rows - window.first_logit_row, hidden = model.shape.hidden;
    if (count <= 0) {
        if (!all_finite(window.hidden, window.rows * model.width())) *window.is_finite = 0;
        return;
    }
    StrataWindow last = window;  // the rows that the head reads
    last.rows = count;
    last.hidden = window.hidden + window.first_logit_row * model.width();
    enter(model, last, model.shape.final_residual, model.shape.final_norm);
    const Clock clock(model.times.head);
    multiply(model.pool, {&model.shape.head}, model.scratch.mixed.data(), count, hidden, window.logits,
             model.shape.vocabulary);
    if (!all_finite(window.logits, int64_t{count} * model.shape.vocabulary)) *window.is_finite = 0;
}

// What a layer's rows leave behind in a slot, from what was stored of them.
void commit_layer(const Part &part, int slot, int accepted, const StrataLayerState &state,
                  const StrataNewState &replaced) {
    const StrataLayer &layer = part.model.layers[part.layer];
    if (layer.ngram.key.count) commit_ngrams(part, slot, accepted, state, replaced);
    if (!layer.is_attention) return commit_delta_net(part, slot, accepted, state, replaced);
    const float *rows = part.stored + part.window.bounds[slot] * attention_width(layer.attention);
    write_cells(part.model, layer.attention, rows, accepted, part.window.positions[slot], state);
}

void make_input(StrataModel &model, const StrataWindow &window) {
    *window.is_finite = 1;
    if (model.shape.join.embedding_map.count) {
        const Clock clock(model.times.residuals);
        join_streams(model, window, window.hidden);
    } else {
        embed(model, window);
    }
}

// Workers spin between the jobs of a window, and every thread rounds alike.
class Session {
public:
    explicit Session(StrataPool *pool) : guard_(pool), pool_(pool) { strata_pool_hold(pool); }
    ~Session() { strata_pool_release(pool_); }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

private:
    PoolGuard guard_;
    StrataPool *pool_;
};

// Runs `work` and turns what it throws into a code.
template <class F>
int32_t answer(F &&work) {
    return guarded([&] {
        try {
            work();
            return int32_t{STRATA_OK};
        } catch (const Failure &failure) {
            return failure.status;
        }
    });
}

}  // namespace

void multiply_ordered(StrataModel &model, const StrataMatrices &matrices, const float *x, int rows, float *y) {
    const int64_t columns = matrices.parts[0]->columns;
    if (matrices.order) {
        std::vector<float> &ordered = model.scratch.ordered;
        if (static_cast<int64_t>(ordered.size()) < rows * columns) ordered.resize(rows * columns);
        for_rows(model.pool, rows, columns, [&](int64_t row, int) {
            const float *from = x + row * columns;
            float *to = ordered.data() + row * columns;
            for (int64_t column = 0; column < columns; ++column) to[column] = from[matrices.order[column]];
        });
        x = ordered.data();
    }
    multiply(model.pool, {&matrices}, x, rows, columns, y, matrices.outputs);
}

void multiply(StrataPool *pool, std::initializer_list<const StrataMatrices *> groups, const float *x, int rows,
              int64_t x_stride, float *y, int64_t y_stride) {
    StrataProduct products[8];
    int count = 0;
    for (const StrataMatrices *group : groups) {
        for (int part = 0; part < group->count; ++part) {
            products[count++] = {group->parts[part], y, y_stride};
            y += group->parts[part]->rows;
        }
    }
    require(strata_matrices_rows(pool, products, count, x, rows, x_stride));
}

}  // namespace strata

int32_t strata_window(StrataModel *model, const StrataWindow *window) {
    return strata::answer([&] {
        const strata::Session session(model->pool);
        model->make_room(window->rows);
        strata::make_input(*model, *window);
        strata::rotate_rows(*model, *window);
        for (int layer = 0; layer < model->shape.layer_count; ++layer) {
            strata::run_layer({*model, *window, layer, model->stored_rows(*window, layer)});
        }
        strata::run_head(*model, *window);
        model->times.windows += 1;
        model->times.rows += window->rows;
    });
}

int32_t strata_commit(StrataModel *model, const StrataWindow *window, int32_t slot, int32_t accepted,
                      const StrataLayerState *states, const StrataNewState *replaced) {
    return strata::answer([&] {
        const strata::Session session(model->pool);
        const strata::Clock clock(model->times.commit);
        for (int index = 0; index < model->shape.layer_count; ++index) {
            const strata::Part part{*model, *window, index, model->stored_rows(*window, index)};
            strata::commit_layer(part, slot, accepted, states[index], replaced[index]);
        }
    });
}

int32_t strata_read_layer(StrataModel *model, const StrataWindow *window, int32_t layer,
                          const StrataNewState *replaced) {
    if (window->slots != 1 || layer < 0 || layer >= model->shape.layer_count)
        return strata::fail(STRATA_INVALID, "layer %d of %d for %d slots; a read has one", layer,
                            model->shape.layer_count, window->slots);
    return strata::answer([&] {
        const strata::Session session(model->pool);
        model->make_room(window->rows);
        if (layer == 0) strata::make_input(*model, *window);
        strata::rotate_rows(*model, *window);
        const strata::Part part{*model, *window, layer, window->stored};
        strata::run_layer(part);
        strata::commit_layer(part, 0, window->rows, window->states[layer], replaced[layer]);
        if (layer + 1 < model->shape.layer_count) return;
        strata::run_head(*model, *window);
        model->times.windows += 1;
        model->times.rows += window->rows;
    });
}
