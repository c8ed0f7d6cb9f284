// See delta_net.h.
#include "delta_net.h"

#include "lanes.h"
#include "norm.h"

namespace strata {

STRATA_CLONES void convolve_row(const float* const* rows, const float* taps, int kernel, int64_t width, float* to) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t count = width - i;
        Lanes sum = load_some(rows[0] + i, count) * load_some(taps + i, count);
        for (int tap = 1; tap < kernel; ++tap) {
            sum += load_some(rows[tap] + i, count) * load_some(taps + tap * width + i, count);
        }
        store_some(to + i, silu_of(sum), count);
    }
}

STRATA_CLONES void normalize_heads(float* row, const DeltaShape& shape) {
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_dim)));
    for (int head = 0; head < 2 * shape.key_heads; ++head) {
        float* values = row + int64_t{head} * shape.key_dim;
        const float length = 1.0f / std::sqrt(dot(values, values, shape.key_dim) + 1e-6f);
        for (int i = 0; i < shape.key_dim; i += kLanes) {
            Lanes unit = load_some(values + i, shape.key_dim - i) * length;
            if (head < shape.key_heads) unit *= scale;
            store_some(values + i, unit, shape.key_dim - i);
        }
    }
}

STRATA_CLONES void make_gates(
    const float* projected, const float* decay_rate, const float* decay_bias, int value_heads, float* gates) {
    for (int head = 0; head < value_heads; ++head) {
        const double a = static_cast<double>(projected[value_heads + head] + decay_bias[head]);
        // in double: its few roundings of the last place, which libraries differ in, vanish in the float
        const double softplus = (a > 0 ? a : 0) + std::log1p(std::exp(-std::fabs(a)));
        gates[head] = sigmoid_of(projected[head]);
        gates[value_heads + head] = static_cast<float>(std::exp(decay_rate[head] * softplus));
    }
}

namespace {

// One row for `parts` lane vectors of columns. The decayed state is formed twice rather than stored between the passes.
template <int parts>
STRATA_INLINE void rule_step(
    const float* query, const float* key, const float* value, float beta, float decay, int key_dim, int64_t stride,
    const float* from, float* to, int64_t width, float* output) {
    Lanes remembered[parts] = {}, mixed[parts] = {}, written[parts];
    for (int i = 0; i < key_dim; ++i) {
        for (int p = 0; p < parts; ++p) {
            remembered[p] += (load_some(from + i * stride + p * kLanes, width - p * kLanes) * decay) * key[i];
        }
    }
    for (int p = 0; p < parts; ++p) {
        written[p] = (load_some(value + p * kLanes, width - p * kLanes) - remembered[p]) * beta;
    }
    for (int i = 0; i < key_dim; ++i) {
        for (int p = 0; p < parts; ++p) {
            const int64_t at = i * stride + p * kLanes, count = width - p * kLanes;
            const Lanes state = load_some(from + at, count) * decay + written[p] * key[i];
            store_some(to + at, state, count);
            mixed[p] += state * query[i];
        }
    }
    if (!output) return;
    for (int p = 0; p < parts; ++p) store_some(output + p * kLanes, mixed[p], width - p * kLanes);
}

}  // namespace

STRATA_CLONES void run_rule(
    const DeltaShape& shape, const RuleRows& rows, int head, int block, const float* from, float* to, float* output) {
    const int64_t first = int64_t{block} * kValueBlock, width = shape.value_dim - first;
    const int64_t matrix = int64_t{head} * shape.key_dim * shape.value_dim + first;
    const int64_t query = int64_t{shape.key_head_of(head)} * shape.key_dim;
    const int64_t key = query + int64_t{shape.key_heads} * shape.key_dim;
    const int64_t value = 2 * int64_t{shape.key_heads} * shape.key_dim + int64_t{head} * shape.value_dim + first;
    const float* before = from + matrix;
    for (int step = 0; step < rows.steps; ++step) {
        const float* row = rows.rows + step * shape.conv_width();
        const float* gates = rows.gates + step * 2 * shape.value_heads;
        float* out = output ? output + step * shape.value_width() + int64_t{head} * shape.value_dim + first : nullptr;
        const float beta = gates[head], decay = gates[shape.value_heads + head];
        if (width >= kValueBlock) {
            rule_step<4>(row + query, row + key, row + value, beta, decay, shape.key_dim, shape.value_dim, before,
                         to + matrix, kValueBlock, out);
        } else {
            for (int64_t at = 0; at < width; at += kLanes) {
                rule_step<1>(row + query, row + key, row + value + at, beta, decay, shape.key_dim, shape.value_dim,
                             before + at, to + matrix + at, width - at < kLanes ? width - at : kLanes,
                             out ? out + at : nullptr);
            }
        }
        before = to + matrix;
    }
}

STRATA_CLONES void gated_norm(
    float* output, const float* z, const float* scale, const DeltaShape& shape, float eps, bool gate_is_sigmoid) {
    for (int head = 0; head < shape.value_heads; ++head) {
        float* values = output + int64_t{head} * shape.value_dim;
        const float* gates = z + int64_t{head} * shape.value_dim;
        rms_norm(values, scale, shape.value_dim, eps, values);
        for (int i = 0; i < shape.value_dim; i += kLanes) {
            const int count = shape.value_dim - i;
            const Lanes gate = load_some(gates + i, count);
            const Lanes open = gate_is_sigmoid ? sigmoid_of(gate) : silu_of(gate);
            store_some(values + i, load_some(values + i, count) * open, count);
        }
    }
}

}  // namespace strata
