// The thread pool as C++ sees it: one job of numbered items at a time, the caller works too.
// Knows no matrix; which thread runs an item is open, so an item's result must depend on its number alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rounding.h"

struct StrataPool;

namespace strata {

// Runs work(context, item, thread) for every item in 0 .. items-1 and returns when all are done. Items are claimed in
// rising order, so an item may wait for a lower one. thread is 0 .. threads-1, the caller is 0. `work` must not throw.
using Work = void (*)(void *context, int64_t item, int thread);
void run_items(StrataPool *pool, int64_t items, Work work, void *context);

// The same with a lambda: for_items(pool, n, [&](int64_t item, int thread) { ... }).
template <class F>
void for_items(StrataPool *pool, int64_t items, F &&work) {
    using Body = std::remove_reference_t<F>;
    run_items(
        pool, items, [](void *context, int64_t item, int thread) { (*static_cast<Body *>(context))(item, thread); },
        const_cast<void *>(static_cast<const void *>(&work)));
}

int thread_count(const StrataPool *pool);

// One job at a time: whoever uses the pool's scratch holds this from before it asks for it until its last job is done.
// Nests on one thread (run_items takes it itself), so a function may run several jobs under one guard.
class PoolGuard {
public:
    explicit PoolGuard(StrataPool *pool);
    ~PoolGuard();
    PoolGuard(const PoolGuard &) = delete;
    PoolGuard &operator=(const PoolGuard &) = delete;
    // At least `bytes` at a multiple of 64, kept by the pool for the next user; throws std::bad_alloc. A second call
    // under one guard gives the same memory again.
    void *scratch(size_t bytes);

private:
    StrataPool *pool_;
    Rounding rounding_;  // what every thread of the pool computes with
};

// Spin-wait step: a few pauses, then giving the core away, so that a waiting thread never starves the one it waits for.
class Backoff {
public:
    void wait();

private:
    uint32_t rounds_ = 0;
};

}  // namespace strata
