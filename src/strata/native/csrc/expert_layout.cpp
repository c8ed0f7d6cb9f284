// Where the arrays of an expert lie in its blob, by docs/storage-codes.md. Knows no arithmetic.
#include "errors.h"
#include "matrix.h"

namespace strata {
namespace {

int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace
}  // namespace strata

int32_t strata_expert_layout(StrataExpertLayout *layout) {
    using namespace strata;
    if (!layout) return fail(STRATA_INVALID, "no layout");
    StrataMatrix *const matrices[] = {&layout->gate, &layout->up, &layout->down};
    for (const StrataMatrix *m : matrices)
        if (const int32_t code = check_form(*m)) return code;
    const StrataMatrix &gate = layout->gate, &up = layout->up, &down = layout->down;
    if (gate.rows != up.rows || gate.columns != up.columns || down.rows != gate.columns || down.columns != gate.rows)
        return fail(STRATA_INVALID, "gate [%d, %d], up [%d, %d] and down [%d, %d] make no expert", gate.rows,
                    gate.columns, up.rows, up.columns, down.rows, down.columns);
    int64_t at = 0;
    const auto place = [&at](int64_t bytes) -> int64_t {
        if (bytes == 0) return -1;
        const int64_t offset = at;
        at = round_up(at + bytes, 64);
        return offset;
    };
    for (int m = 0; m < 3; ++m) layout->offsets[m][0] = place(array_bytes(*matrices[m]).of[0]);
    for (int m = 0; m < 3; ++m)
        for (int array = 1; array < 5; ++array) layout->offsets[m][array] = place(array_bytes(*matrices[m]).of[array]);
    layout->post_scales_offset = place(3 * sizeof(float));
    layout->blob_bytes = round_up(at, 256);
    return STRATA_OK;
}
