// Rows of experts added up in rank order, so that who computed a row and when does not show. Knows no expert.
#include <algorithm>
#include <cstring>

#include "errors.h"
#include "kernels.h"
#include "pool.h"

namespace strata {
namespace {

constexpr int32_t kPiece = 512;     // columns that one item adds up
constexpr int64_t kFew = 64 << 10;  // values that the caller adds up alone: a few microseconds

struct Combine {
    int32_t ranks, hidden;
    const float *expert_rows, *router_weights;
    const uint8_t *computed;
    const float *shared;
    int64_t shared_stride;
    const float *shared_weights;
    float *out;
    int64_t out_stride;
};

void combine_piece(const KernelSet &set, const Combine &c, int64_t row, int32_t first) {
    const int32_t width = std::min(kPiece, c.hidden - first);
    alignas(64) float total[kPiece];
    std::fill_n(total, width, 0.0f);
    for (int64_t at = row * c.ranks; at < (row + 1) * c.ranks; ++at)
        if (!c.computed || c.computed[at])
            set.add_scaled(c.router_weights[at], c.expert_rows + at * c.hidden + first, total, width);
    if (c.shared)  // without weights: fma(1, shared, total) is the sum
        set.add_scaled(c.shared_weights ? c.shared_weights[row] : 1.0f, c.shared + row * c.shared_stride + first,
                       total, width);
    std::memcpy(c.out + row * c.out_stride + first, total, static_cast<size_t>(width) * sizeof(float));
}

}  // namespace
}  // namespace strata

int32_t strata_combine(StrataPool *pool, int32_t rows, int32_t ranks, int32_t hidden, const float *expert_rows,
                       const float *router_weights, const uint8_t *computed, const float *shared,
                       int64_t shared_stride, const float *shared_weights, float *out, int64_t out_stride) {
    using namespace strata;
    if (!pool || !expert_rows || !router_weights || !out || rows < 0 || ranks < 1 || hidden < 1)
        return fail(STRATA_INVALID, "%d rows of %d ranks of %d values, or a null pointer", rows, ranks, hidden);
    if (out_stride < hidden || (shared && shared_stride < hidden)) return fail(STRATA_INVALID, "rows overlap");
    const KernelSet &set = kernels();
    const Combine c = {ranks,         hidden,         expert_rows, router_weights, computed, shared,
                       shared_stride, shared_weights, out,         out_stride};
    const int64_t pieces = (hidden + kPiece - 1) / kPiece;
    const auto piece = [&](int64_t item, int) {
        combine_piece(set, c, item / pieces, static_cast<int32_t>(item % pieces * kPiece));
    };
    if (int64_t{rows} * ranks * hidden > kFew) {
        for_items(pool, rows * pieces, piece);
    } else {
        const Rounding rounding;
        for (int64_t item = 0; item < rows * pieces; ++item) piece(item, 0);
    }
    return STRATA_OK;
}
