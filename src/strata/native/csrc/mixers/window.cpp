// A window from token ids to logits and the commit of its rows: the order of a model's parts, and the C ABI around it.
// Knows no part's maths.
#include <algorithm>

#include "../errors.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"

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
    const int64_t hidden = model.shape.hidden;
    for (int row = 0; row < window.rows; ++row) {
        const float *from = model.shape.embedding + window.token_ids[row] * hidden;
        for (int stream = 0; stream < model.shape.streams; ++stream) {
            std::copy_n(from, hidden, window.hidden + row * model.width() + stream * hidden);
        }
    }
}

void rotate_rows(StrataModel &model, const StrataWindow &window) {
    const int half = model.shape.rotary_half;
    for (int slot = 0; slot < window.slots; ++slot) {
        for (int row = window.bounds[slot]; row < window.bounds[slot + 1]; ++row) {
            make_rotation(window.positions[slot] + row - window.bounds[slot], model.shape.frequencies, half,
                          model.scratch.rotation.data() + int64_t{row} * 2 * half);
        }
    }
}

// What a part reads, and what becomes of its output: residual streams or a plain residual sum.
void enter(StrataModel &model, const StrataWindow &window, const StrataResidual &residual, const float *norm) {
    const Clock clock(model.times.residuals);
    const int hidden = model.shape.hidden;
    float *x = model.scratch.mixed.data();
    if (model.shape.streams > 1) return read_streams(model, residual, window.hidden, window.rows, x);
    for (int64_t row = 0; row < window.rows; ++row) {
        rms_norm(window.hidden + row * hidden, norm, hidden, model.shape.eps, x + row * hidden);
    }
}

void leave(StrataModel &model, const StrataWindow &window, const StrataResidual &residual) {
    const Clock clock(model.times.residuals);
    const float *output = model.scratch.output.data();
    if (model.shape.streams > 1) return write_streams(model, residual, output, window.rows, window.hidden);
    add_row(output, int64_t{window.rows} * model.shape.hidden, window.hidden);
}

void run_layer(StrataModel &model, const StrataWindow &window, int index) {
    const StrataLayer &layer = model.layers[index];
    const Part part{model, window, index};
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
        *window->is_finite = 1;
        if (model->shape.join.embedding_map.count) {
            const strata::Clock clock(model->times.residuals);
            strata::join_streams(*model, *window, window->hidden);
        } else {
            strata::embed(*model, *window);
        }
        strata::rotate_rows(*model, *window);
        for (int layer = 0; layer < model->shape.layer_count; ++layer) strata::run_layer(*model, *window, layer);
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
            const StrataLayer &layer = model->layers[index];
            const strata::Part part{*model, *window, index};
            if (layer.ngram.key.count) strata::commit_ngrams(part, slot, accepted, states[index], replaced[index]);
            if (!layer.is_attention) {
                strata::commit_delta_net(part, slot, accepted, states[index], replaced[index]);
                continue;
            }
            const int64_t width = strata::attention_width(layer.attention);
            const float *rows = model->stored_rows(*window, index) + window->bounds[slot] * width;
            strata::write_cells(*model, layer.attention, rows, accepted, window->positions[slot], states[index]);
        }
    });
}
