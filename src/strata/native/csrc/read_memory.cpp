// Reads memory and does nothing with it: the measure that expert throughput is held against. Knows no matrix.
#include <algorithm>
#include <chrono>

#include "errors.h"
#include "kernels.h"
#include "pool.h"

namespace {

constexpr int64_t kPiece = 64 << 10;  // bytes of an item: about what an item of an expert reads

}  // namespace

int32_t strata_read_memory(StrataPool *pool, const void *bytes, int64_t size, double *seconds) {
    using namespace strata;
    if (!pool || !bytes || size < 0 || !seconds) return fail(STRATA_INVALID, "a null pointer or a negative size");
    const KernelSet &set = kernels();
    const auto *from = static_cast<const char *>(bytes);
    const auto begin = std::chrono::steady_clock::now();
    for_items(pool, (size + kPiece - 1) / kPiece, [&](int64_t item, int) {
        set.read_bytes(from + item * kPiece, std::min(kPiece, size - item * kPiece));
    });
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return STRATA_OK;
}
