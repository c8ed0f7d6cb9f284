// See norm.h.
#include "norm.h"

#include "lanes.h"

namespace strata {

STRATA_CLONES void rms_norm(const float* x, const float* scale, int64_t width, float eps, float* to) {
    const float factor = 1.0f / std::sqrt(dot(x, x, width) / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; i += kLanes) {
        Lanes normed = load_some(x + i, width - i) * factor;
        if (scale) normed *= load_some(scale + i, width - i);
        store_some(to + i, normed, width - i);
    }
}

void grouped_rms_norm(const float* x, const float* scale, int64_t width, int groups, float eps, float* to) {
    const int64_t part = width / groups;
    for (int64_t at = 0; at < width; at += part) rms_norm(x + at, scale + at, part, eps, to + at);
}

STRATA_CLONES void silu_times(const float* gate, const float* up, int64_t width, float* to) {
    for (int64_t i = 0; i < width; i += kLanes) {
        Lanes active = silu_of(load_some(gate + i, width - i));
        if (up) active *= load_some(up + i, width - i);
        store_some(to + i, active, width - i);
    }
}

STRATA_CLONES void sigmoid_times(const float* values, const float* gate, int64_t width, float* to) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const Lanes open = sigmoid_of(load_some(gate + i, width - i));
        store_some(to + i, load_some(values + i, width - i) * open, width - i);
    }
}

STRATA_CLONES void add_row(const float* from, int64_t width, float* to) {
    for (int64_t i = 0; i < width; i += kLanes) {
        store_some(to + i, load_some(to + i, width - i) + load_some(from + i, width - i), width - i);
    }
}

void make_rotation(int64_t position, const double* frequencies, int half, float* cos_sin) {
    for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        cos_sin[i] = static_cast<float>(std::cos(angle));
        cos_sin[half + i] = static_cast<float>(std::sin(angle));
    }
}

STRATA_CLONES void rotate(float* head, const float* cos_sin, int half) {
    for (int i = 0; i < half; i += kLanes) {
        const int count = half - i;
        const Lanes first = load_some(head + i, count), second = load_some(head + half + i, count);
        const Lanes cosine = load_some(cos_sin + i, count), sine = load_some(cos_sin + half + i, count);
        store_some(head + i, first * cosine - second * sine, count);
        store_some(head + half + i, second * cosine + first * sine, count);
    }
}

}  // namespace strata
