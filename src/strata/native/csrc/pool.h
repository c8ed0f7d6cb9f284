// The thread pool as C++ sees it: one job of numbered shares or items at a time, the caller works too.
// Knows no matrix; which thread runs one is open, so a result must depend on its number alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rounding.h"

struct StrataPool;

namespace strata {

// thread is 0 .. threads-1, the caller is 0. Must not throw.
using Work = void (*)(void *context, int64_t number, int thread);

// Runs work(context, share, thread) for every share in 0 .. shares-1, at most one for each thread, and returns when all
// are done. Thread t takes share t, without a word that others write; what a late thread has not begun when the caller
// is done with its own share the caller runs, too. So a share may wait only for what another one has begun.
void run_shares(StrataPool *pool, int shares, Work work, void *context);

// The same for any number of items. They are claimed in rising order, so an item may wait for a lower one.
void run_items(StrataPool *pool, int64_t items, Work work, void *context);

template <class F>
void call_body(void *body, int64_t number, int thread) {
    (*static_cast<F *>(body))(number, thread);
}

// With a lambda: for_shares(pool, n, [&](int64_t share, int thread) { ... }).
template <class F>
void for_shares(StrataPool *pool, int shares, F &&work) {
    using Body = std::remove_reference_t<F>;
    run_shares(pool, shares, call_body<Body>, const_cast<void *>(static_cast<const void *>(&work)));
}

template <class F>
void for_items(StrataPool *pool, int64_t items, F &&work) {
    using Body = std::remove_reference_t<F>;
    run_items(pool, items, call_body<Body>, const_cast<void *>(static_cast<const void *>(&work)));
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

// For a thread of ours that calls the pool again and again: it stays on a core beside the workers' for as long as this
// lives, if the pool is pinned and a core is left for others then.
class CallersHome {
public:
    explicit CallersHome(StrataPool *pool);
    ~CallersHome();
    CallersHome(const CallersHome &) = delete;
    CallersHome &operator=(const CallersHome &) = delete;

private:
    StrataPool *pool_;
};

// Spin-wait step: a few pauses, then giving the core away, so that a waiting thread never starves the one it waits for.
class Backoff {
public:
    void wait();

private:
    uint32_t rounds_ = 0;
};

}  // namespace strata
