// Rows of activations, quantized once for all who multiply with them. Knows no matrix.
#pragma once

#include <cstddef>

#include "kernels.h"

namespace strata {

// Quantized rows in memory that the owner gives; rows lie one after another.
class Activations {
public:
    // What `count` rows of `columns` need, a multiple of 64; 0 where columns do not make blocks (float codes only).
    static size_t bytes(int64_t count, int32_t columns);
    Activations(void *memory, int64_t count, int32_t columns);

    // Quantizes one row from float32. `row(i).x` stays the caller's pointer. Does nothing where columns make no blocks.
    void take(const KernelSet &set, int64_t i, const float *x);
    // Quantizes columns 32 * block .. of a row from 32 values.
    void take_block(const KernelSet &set, int64_t i, int32_t block, const float *values);
    // Takes one row that is quantized already.
    void take(int64_t i, const int8_t *q, const float *d);
    Row row(int64_t i, const float *x) const;

private:
    int32_t columns_;
    int8_t *q_ = nullptr;
    float *d_ = nullptr;
    int32_t *sums_ = nullptr;
};

}  // namespace strata
