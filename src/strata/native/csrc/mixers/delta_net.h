// The gated delta net between its projections: convolution, the rule row by row, gated norm. Knows rows of one slot
// and heads; knows neither projections nor threads.
#pragma once

#include <cstdint>

namespace strata {

struct DeltaShape {
    int key_heads, value_heads, key_dim, value_dim, conv_kernel;
    int64_t conv_width() const { return 2 * int64_t{key_heads} * key_dim + int64_t{value_heads} * value_dim; }
    int64_t value_width() const { return int64_t{value_heads} * value_dim; }
    int key_head_of(int value_head) const { return value_head / (value_heads / key_heads); }
};

// silu of the convolution of one row, added to nothing or to `base`. `past(tap)` of the rows before it: row pointers in
// rising order, the row itself last; taps [kernel, width].
void convolve_row(const float* const* rows, const float* taps, int kernel, int64_t width, float* to);

// Convolved row [conv_width] in place: queries and keys to length 1, queries scaled.
void normalize_heads(float* row, const DeltaShape& shape);

// gates [2 * value_heads]: b and a of the projection become beta and the decay itself (not its logarithm).
void make_gates(
    const float* projected, const float* decay_rate, const float* decay_bias, int value_heads, float* gates);

constexpr int kValueBlock = 64;  // columns of a head's state that one piece of work carries in registers

// `steps` rows of the rule for columns block * 64.. of one value head. rows [steps][conv_width] as normalize_heads left
// them, gates [steps][2 * value_heads], both `stride` apart; from and to [value_heads, key_dim, value_dim] may not be
// the same; output [steps][value_width] or null.
struct RuleRows {
    const float* rows;
    const float* gates;
    int steps;
};
void run_rule(
    const DeltaShape& shape, const RuleRows& rows, int head, int block, const float* from, float* to, float* output);

// output, z [value_heads, value_dim] -> norm(output) * scale * activation(z), in place in `output`.
void gated_norm(
    float* output, const float* z, const float* scale, const DeltaShape& shape, float eps, bool gate_is_sigmoid);

}  // namespace strata
