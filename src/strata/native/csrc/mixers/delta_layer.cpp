// A gated delta net over the rows of a window, and its commit by replay. Knows slots and their stored rows; the maths
// are in delta_net.cpp.
#include <algorithm>

#include "delta_net.h"
#include "model.h"

namespace strata {
namespace {

int value_blocks(const DeltaShape &shape) { return (shape.value_dim + kValueBlock - 1) / kValueBlock; }

// The stored rows: everything between the projection and the rule.
struct Rows {
    float *projected, *convolved, *gates;
    int64_t projected_width, conv_width, gate_width;
};

Rows rows_of(const Part &part) {
    const Stored &stored = part.model.stored[part.layer];
    const DeltaShape shape = shape_of(part.model.layers[part.layer].delta);
    float *convolved = part.stored + stored.projected * part.window.rows;
    return {part.stored, convolved, convolved + stored.convolved * part.window.rows,
            stored.projected, shape.conv_width(), 2 * int64_t{shape.value_heads}};
}

// Convolution, unit heads and gates of a slot's rows.
void prepare_row(const StrataDeltaNet &net, const Rows &rows, const float *tail, int64_t first, int64_t row) {
    const DeltaShape shape = shape_of(net);
    const float *past[kMostTaps];
    for (int tap = 0; tap < net.conv_kernel; ++tap) {
        past[tap] = row_or_tail(tail, net.conv_kernel - 1, rows.projected + first * rows.projected_width,
                                rows.projected_width, rows.conv_width, row - first - (net.conv_kernel - 1) + tap);
    }
    float *convolved = rows.convolved + row * rows.conv_width;
    convolve_row(past, net.conv, net.conv_kernel, rows.conv_width, convolved);
    normalize_heads(convolved, shape);
    const float *gates = rows.projected + row * rows.projected_width + rows.conv_width + shape.value_width();
    make_gates(gates, net.decay_rate, net.decay_bias, net.value_heads, rows.gates + row * rows.gate_width);
}

}  // namespace

void run_delta_net(const Part &part, const float *x, float *output) {
    StrataModel &model = part.model;
    const StrataWindow &window = part.window;
    const StrataDeltaNet &net = model.layers[part.layer].delta;
    const DeltaShape shape = shape_of(net);
    const Rows rows = rows_of(part);
    const int hidden = model.shape.hidden, count = window.rows;
    float *attended = model.scratch.attended.data(), *final_delta = window.final_delta[part.layer];
    {
        const Clock clock(model.times.dense);
        multiply(model.pool, {&net.in}, x, count, hidden, rows.projected, rows.projected_width);
    }
    {
        const Clock clock(model.times.mixers);
        const int64_t matrix = int64_t{shape.value_heads} * shape.key_dim * shape.value_dim;
        for (int slot = 0; slot < window.slots; ++slot) {
            const float *tail = window.states[int64_t{slot} * model.shape.layer_count + part.layer].conv_tail;
            const int64_t first = window.bounds[slot];
            for_rows(model.pool, window.bounds[slot + 1] - first, rows.conv_width, [&](int64_t row, int) {
                prepare_row(net, rows, tail, first, first + row);
            });
        }
        const int blocks = value_blocks(shape), pieces = shape.value_heads * blocks;
        for_items(model.pool, int64_t{window.slots} * pieces, [&](int64_t item, int) {
            const int64_t slot = item / pieces, first = window.bounds[slot];
            const int piece = static_cast<int>(item % pieces);
            const RuleRows rule{rows.convolved + first * rows.conv_width, rows.gates + first * rows.gate_width,
                                window.bounds[slot + 1] - static_cast<int>(first)};
            run_rule(shape, rule, piece / blocks, piece % blocks,
                     window.states[slot * model.shape.layer_count + part.layer].delta, final_delta + slot * matrix,
                     attended + first * shape.value_width());
        });
        for_rows(model.pool, count, shape.value_width(), [&](int64_t row, int) {
            gated_norm(attended + row * shape.value_width(),
                       rows.projected + row * rows.projected_width + rows.conv_width, net.norm_scale, shape, net.eps,
                       net.gate_is_sigmoid != 0);
        });
    }
    const Clock clock(model.times.dense);
    multiply_ordered(model, net.out, attended, count, output);
}

void commit_delta_net(const Part &part, int slot, int accepted, const StrataLayerState &state,
                      const StrataNewState &replaced) {
    StrataModel &model = part.model;
    const StrataDeltaNet &net = model.layers[part.layer].delta;
    const DeltaShape shape = shape_of(net);
    const Rows rows = rows_of(part);
    const int64_t first = part.window.bounds[slot];
    const int tail_rows = net.conv_kernel - 1;
    for (int row = 0; row < tail_rows; ++row) {
        const float *from = row_or_tail(state.conv_tail, tail_rows, rows.projected + first * rows.projected_width,
                                        rows.projected_width, rows.conv_width, accepted - tail_rows + row);
        std::copy_n(from, rows.conv_width, replaced.conv_tail + row * rows.conv_width);
    }
    if (!replaced.delta) return;
    const int blocks = value_blocks(shape);
    const RuleRows rule{rows.convolved + first * rows.conv_width, rows.gates + first * rows.gate_width, accepted};
    for_items(model.pool, int64_t{shape.value_heads} * blocks, [&](int64_t item, int) {
        run_rule(shape, rule, static_cast<int>(item / blocks), static_cast<int>(item % blocks), state.delta,
                 replaced.delta, nullptr);
    });
}

}  // namespace strata
