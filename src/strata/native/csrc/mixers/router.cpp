// See router.h.
#include "router.h"

#include "lanes.h"

namespace strata {
namespace {

STRATA_CLONES void softmax(float *logits, int count) {
    Lanes peaks = same(-__builtin_inff());
    for (int i = 0; i < count; i += kLanes) {
        Lanes values = load_some(logits + i, count - i);
        for (int lane = count - i; lane < kLanes; ++lane) values[lane] = -__builtin_inff();
        peaks = larger(peaks, values);
    }
    const float peak = largest_of(peaks);
    Lanes totals = {};
    for (int i = 0; i < count; i += kLanes) {
        Lanes shares = exp_of(load_some(logits + i, count - i) - peak);
        for (int lane = count - i; lane < kLanes; ++lane) shares[lane] = 0.0f;
        totals += shares;
        store_some(logits + i, shares, count - i);
    }
    const float total = sum_of(totals);
    for (int i = 0; i < count; i += kLanes) {
        store_some(logits + i, load_some(logits + i, count - i) / total, count - i);
    }
}

}  // namespace

void route(float *logits, int experts, int count, bool normalize, int32_t *ids, float *weights) {
    softmax(logits, experts);
    int found = 0;
    for (int expert = 0; expert < experts; ++expert) {
        const float share = logits[expert];
        if (found == count && !(share > weights[count - 1])) continue;
        int place = found < count ? found++ : count - 1;
        // only a larger share moves ahead of one with a lower id
        for (; place > 0 && share > weights[place - 1]; --place) {
            weights[place] = weights[place - 1];
            ids[place] = ids[place - 1];
        }
        weights[place] = share;
        ids[place] = expert;
    }
    if (!normalize) return;
    float total = 0.0f;
    for (int rank = 0; rank < count; ++rank) total += weights[rank];
    for (int rank = 0; rank < count; ++rank) weights[rank] /= total;
}

}  // namespace strata
