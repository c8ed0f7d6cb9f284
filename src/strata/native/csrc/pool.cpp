// The thread pool: pinned workers, each with a ticket to its share of a job, that spin for a while and then sleep.
// Knows no matrix. A ticket carries the job's number, so that a late worker can never begin a share of the next job.
#include "pool.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "affinity.h"
#include "errors.h"
#include "signals.h"
#include "strata_native.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strata {
namespace {

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Tells a forked child, which has no workers, from the process that made the pool, without a system call.
class ForkMark {
public:
    ForkMark() {
        void *page = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
        page_ = static_cast<char *>(page);
        page_[0] = 1;
        if (madvise(page_, size_, MADV_WIPEONFORK) != 0) wipes_ = false;
    }
    ~ForkMark() {
        if (page_) munmap(page_, size_);
    }
    ForkMark(const ForkMark &) = delete;
    ForkMark &operator=(const ForkMark &) = delete;
    bool in_child() const { return page_ && wipes_ ? page_[0] == 0 : getpid() != owner_; }

private:
    const size_t size_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const pid_t owner_ = getpid();
    char *page_ = nullptr;
    bool wipes_ = true;
};

}  // namespace
}  // namespace strata

namespace strata {
namespace {

// Whether somebody has begun or ended a thread's share of a job. A line of its own: only that thread and the caller look.
struct alignas(64) Ticket {
    std::atomic<uint64_t> state{0};  // 2 * number + 1: the share is begun, + 2: it is done; lower: of an older job

    bool take(uint64_t number) {
        uint64_t found = state.load(std::memory_order_relaxed);
        return found <= 2 * number && state.compare_exchange_strong(found, 2 * number + 1, std::memory_order_acq_rel);
    }
    void hand_back(uint64_t number) { state.store(2 * number + 2, std::memory_order_release); }
    bool is_done(uint64_t number) const { return state.load(std::memory_order_acquire) == 2 * number + 2; }
};

}  // namespace
}  // namespace strata

struct StrataPool {
    // High 48 bits: the job's number; low: its shares. Workers wait for it; the rest of the line is written before it.
    alignas(64) std::atomic<uint64_t> job{0};
    strata::Work work = nullptr;
    void *context = nullptr;
    alignas(64) std::atomic<int> parked{0};
    std::atomic<int> holds{0};
    std::atomic<bool> stopping{false};
    std::mutex park_mutex;
    std::condition_variable wake;

    std::recursive_mutex job_mutex;
    std::vector<std::thread> workers;
    std::unique_ptr<strata::Ticket[]> tickets;  // [threads]; the caller's is not used
    std::unique_ptr<strata::Homes> homes;
    int threads = 1;
    int spin_us = 0;
    strata::ForkMark fork_mark;
    void *scratch = nullptr;
    size_t scratch_bytes = 0;
};

namespace strata {
namespace {

constexpr int kShareBits = 16;
uint64_t number_of(uint64_t job) { return job >> kShareBits; }
int shares_of(uint64_t job) { return static_cast<int>(job & ((1 << kShareBits) - 1)); }

// A share of the job, if nobody has begun it. Whoever has its ticket keeps the job from ending, and so work and context
// from changing.
void run_share(StrataPool &pool, uint64_t job, int share, int thread) {
    if (share >= shares_of(job) || !pool.tickets[share].take(number_of(job))) return;
    pool.work(pool.context, share, thread);
    pool.tickets[share].hand_back(number_of(job));
}

// Until there is another job than the one that was seen, or the pool ends. Sleeping starts after spin_us without work,
// never while the pool is held.
void wait_for_job(StrataPool &pool, uint64_t seen) {
    using Clock = std::chrono::steady_clock;
    const auto ready = [&] { return pool.job.load() != seen || pool.stopping.load() || pool.holds.load() > 0; };
    const auto limit = Clock::now() + std::chrono::microseconds(pool.spin_us);
    Backoff backoff;
    do {
        for (int i = 0; i < 32; ++i) {
            if (pool.job.load(std::memory_order_relaxed) != seen) return;
            if (pool.stopping.load(std::memory_order_relaxed)) return;
            backoff.wait();
        }
    } while (pool.holds.load(std::memory_order_relaxed) > 0 || Clock::now() < limit);
    std::unique_lock<std::mutex> lock(pool.park_mutex);
    pool.parked.fetch_add(1);  // sequentially consistent with the poster's store and load: one of us sees the other
    pool.wake.wait(lock, ready);
    pool.parked.fetch_sub(1);
}

void wake_parked(StrataPool &pool) {
    if (pool.parked.load() == 0) return;
    { std::lock_guard<std::mutex> lock(pool.park_mutex); }
    pool.wake.notify_all();
}

void worker(StrataPool &pool, int thread) {
    pool.homes->settle();
    const Rounding rounding;
    for (uint64_t seen = 0; !pool.stopping.load(std::memory_order_acquire); wait_for_job(pool, seen)) {
        seen = pool.job.load(std::memory_order_acquire);
        run_share(pool, seen, thread, thread);
    }
}

void start_workers(StrataPool &pool, bool pinned) {
    std::vector<int> cpus = usable_cpus();
    if (!pinned || pool.threads > static_cast<int>(cpus.size())) cpus.clear();
    pool.homes = std::make_unique<Homes>(std::move(cpus));
    pool.tickets = std::make_unique<Ticket[]>(static_cast<size_t>(pool.threads));
    const SignalsBlocked blocked;
    for (int t = 1; t < pool.threads; ++t) pool.workers.emplace_back([&pool, t] { worker(pool, t); });
}

void stop_workers(StrataPool &pool) {
    {
        std::lock_guard<std::mutex> lock(pool.park_mutex);
        pool.stopping.store(true);
    }
    pool.wake.notify_all();
    for (std::thread &thread : pool.workers) thread.join();
}

}  // namespace

void Backoff::wait() {
    // 64 pauses are 1 to 3 us: waits that are short on idle cores stay short, a busy machine gets the core back.
    if (++rounds_ % 64 == 0)
        sched_yield();
    else
        pause();
}

int thread_count(const StrataPool *pool) { return pool->threads; }

CallersHome::CallersHome(StrataPool *pool) : pool_(pool) { pool_->homes->settle(); }

CallersHome::~CallersHome() { pool_->homes->leave(); }

PoolGuard::PoolGuard(StrataPool *pool) : pool_(pool) {
    if (!pool_->fork_mark.in_child()) pool_->job_mutex.lock();  // in a child its owner may be gone for ever
}

PoolGuard::~PoolGuard() {
    if (!pool_->fork_mark.in_child()) pool_->job_mutex.unlock();
}

void *PoolGuard::scratch(size_t bytes) {
    if (bytes > pool_->scratch_bytes) {
        const size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
        void *grown = std::aligned_alloc(4096, rounded);
        if (!grown) throw std::bad_alloc();
        std::free(pool_->scratch);
        pool_->scratch = grown;
        pool_->scratch_bytes = rounded;
    }
    return pool_->scratch;
}

void run_shares(StrataPool *pool, int shares, Work work, void *context) {
    PoolGuard guard(pool);
    if (shares <= 1 || pool->fork_mark.in_child()) {
        for (int share = 0; share < shares; ++share) work(context, share, 0);
        return;
    }
    pool->work = work;
    pool->context = context;
    const uint64_t number = number_of(pool->job.load(std::memory_order_relaxed)) + 1;
    const uint64_t job = number << kShareBits | static_cast<uint64_t>(shares);
    pool->job.store(job);
    wake_parked(*pool);
    work(context, 0, 0);
    for (int share = 1; share < shares; ++share) run_share(*pool, job, share, 0);
    Backoff backoff;
    for (int share = 1; share < shares; ++share)
        while (!pool->tickets[share].is_done(number)) backoff.wait();
}

namespace {

struct Items {
    int64_t count;
    Work work;
    void *context;
    alignas(64) std::atomic<int64_t> next{0};
};

void claim_items(void *context, int64_t, int thread) {
    auto &items = *static_cast<Items *>(context);
    for (int64_t item; (item = items.next.fetch_add(1, std::memory_order_relaxed)) < items.count;)
        items.work(items.context, item, thread);
}

}  // namespace

void run_items(StrataPool *pool, int64_t items, Work work, void *context) {
    Items claims{items, work, context};
    run_shares(pool, static_cast<int>(std::min<int64_t>(items, pool->threads)), claim_items, &claims);
}

}  // namespace strata

int32_t strata_pool_create(int32_t threads, int32_t pinned, int32_t spin_us, StrataPool **pool) {
    using namespace strata;
    if (!pool) return fail(STRATA_INVALID, "no place for the pool");
    *pool = nullptr;
    if (threads < 1 || threads > 1024) return fail(STRATA_INVALID, "%d threads; 1 to 1024 work", threads);
    if (spin_us < 0 || spin_us > 1000000) return fail(STRATA_INVALID, "%d us of spinning; 0 to 1000000 work", spin_us);
    return guarded([&]() -> int32_t {
        auto *made = new StrataPool;
        made->threads = threads;
        made->spin_us = spin_us;
        try {
            start_workers(*made, pinned != 0);
        } catch (...) {
            stop_workers(*made);
            delete made;
            throw;
        }
        *pool = made;
        return STRATA_OK;
    });
}

void strata_pool_destroy(StrataPool *pool) {
    if (!pool || pool->fork_mark.in_child()) return;  // a child never had the threads that it would wait for
    {
        strata::PoolGuard guard(pool);  // a job of another thread ends first
        strata::stop_workers(*pool);
    }
    std::free(pool->scratch);
    delete pool;
}

int32_t strata_pool_threads(const StrataPool *pool) { return pool->threads; }

void strata_pool_hold(StrataPool *pool) {
    if (!pool->fork_mark.in_child()) pool->homes->make_way();
    pool->holds.fetch_add(1);
    strata::wake_parked(*pool);
}

void strata_pool_release(StrataPool *pool) { pool->holds.fetch_sub(1); }
