// Which experts a row takes. Knows one row's logits.
#pragma once

#include <cstdint>

namespace strata {

// Softmax over `experts` logits in place, then the `count` best, best first, the lower id first among equals.
void route(float *logits, int experts, int count, bool normalize, int32_t *ids, float *weights);

}  // namespace strata
