// Lists of (expert, rows) through a pool: what the synchronous entry and the doorbell service share.
// Knows no router and no mailbox.
#pragma once

#include "strata_native.h"

namespace strata {

// Rows of activations as the caller has them: float32, or quantized already (then gate and up must be packed codes).
struct ExpertInput {
    const float *x;
    int64_t x_stride;
    const int8_t *q;
    const float *d;
    int32_t rows;
};

// 0 or an error; the layout must come from strata_expert_layout. May throw std::bad_alloc.
int32_t run_experts(StrataPool *pool, const StrataExpertLayout &layout, const StrataExpertJob *jobs, int32_t job_count,
                    const ExpertInput &input, float *out, int64_t out_stride);

}  // namespace strata
