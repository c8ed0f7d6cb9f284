// Root-mean-square norms, activations of rows and rotary embedding: what the other mixers are made of.
// Knows single rows only.
#pragma once

#include <cstdint>

namespace strata {

// x / sqrt(mean(x^2) + eps) * scale; a null scale multiplies by nothing. `to` may be x.
void rms_norm(const float* x, const float* scale, int64_t width, float eps, float* to);

// Each of `groups` equal parts of the row has its own mean square.
void grouped_rms_norm(const float* x, const float* scale, int64_t width, int groups, float eps, float* to);

// silu(gate) * up, or with no `up` silu(gate) alone. `to` may be one of them.
void silu_times(const float* gate, const float* up, int64_t width, float* to);

// values * sigmoid(gate)
void sigmoid_times(const float* values, const float* gate, int64_t width, float* to);

// to += from
void add_row(const float* from, int64_t width, float* to);

// cos and sin, `half` each, of one position; angles are formed in double.
void make_rotation(int64_t position, const double* frequencies, int half, float* cos_sin);

// Rotates the first 2 * half values of a head in place (half-split layout).
void rotate(float* head, const float* cos_sin, int half);

}  // namespace strata
