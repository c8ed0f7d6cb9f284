// What the machine gives: memory that is read and not used, multiplications of registers. Expert throughput is held
// against both. Knows no matrix.
#include <algorithm>
#include <atomic>
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

int32_t strata_multiply_rate(StrataPool *pool, int64_t rounds, double *per_second) {
    using namespace strata;
    if (!pool || rounds < 1 || !per_second) return fail(STRATA_INVALID, "a null pointer or no round");
    const KernelSet &set = kernels();
    std::atomic<int64_t> products{0};
    const auto begin = std::chrono::steady_clock::now();
    for_shares(pool, thread_count(pool), [&](int64_t, int) { products += set.multiply_only(rounds); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    *per_second = static_cast<double>(products) / taken.count();
    return STRATA_OK;
}
