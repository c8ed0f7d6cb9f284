// Memory layout of quantized rows. Knows no matrix; the arithmetic is the kernels'.
#include "activations.h"

#include <cstring>

namespace strata {
namespace {

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t Activations::bytes(int64_t count, int32_t columns) {
    if (columns % 32 != 0) return 0;
    const size_t values = static_cast<size_t>(count) * static_cast<size_t>(columns);
    return round_up(values) + round_up(values / 32 * sizeof(float)) + round_up(values / 16 * sizeof(int32_t));
}

Activations::Activations(void *memory, int64_t count, int32_t columns) : columns_(columns) {
    if (columns % 32 != 0) return;
    const size_t values = static_cast<size_t>(count) * static_cast<size_t>(columns);
    auto *at = static_cast<char *>(memory);
    q_ = reinterpret_cast<int8_t *>(at);
    d_ = reinterpret_cast<float *>(at + round_up(values));
    sums_ = reinterpret_cast<int32_t *>(at + round_up(values) + round_up(values / 32 * sizeof(float)));
}

void Activations::take(const KernelSet &set, int64_t i, const float *x) {
    if (columns_ % 32 != 0) return;
    set.quantize(x, columns_, q_ + i * columns_, d_ + i * (columns_ / 32), sums_ + i * (columns_ / 16));
}

void Activations::take_block(const KernelSet &set, int64_t i, int32_t block, const float *values) {
    const int64_t at = i * (columns_ / 32) + block;
    set.quantize(values, 32, q_ + at * 32, d_ + at, sums_ + at * 2);
}

void Activations::take(int64_t i, const int8_t *q, const float *d) {
    std::memcpy(q_ + i * columns_, q, static_cast<size_t>(columns_));
    std::memcpy(d_ + i * (columns_ / 32), d, static_cast<size_t>(columns_ / 32) * sizeof(float));
    int32_t *sums = sums_ + i * (columns_ / 16);
    for (int32_t half = 0; half < columns_ / 16; ++half) {
        sums[half] = 0;
        for (int k = 0; k < 16; ++k) sums[half] += q[half * 16 + k];
    }
}

Row Activations::row(int64_t i, const float *x) const {
    if (!q_) return {nullptr, nullptr, nullptr, x};
    return {q_ + i * columns_, d_ + i * (columns_ / 32), sums_ + i * (columns_ / 16), x};
}

}  // namespace strata
