// The thread pool: pinned workers that claim numbered items, spin for a while and then sleep.
// Knows no matrix. The claim word carries the job's epoch, so that a late worker can never claim into the next job.
#include "pool.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
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

struct StrataPool {
    // high 32 bits: the job's number; low: its items that nobody has claimed. Counting down needs no second word to
    // know the end, so a claim that succeeds belongs to a job that is still running, whatever the worker read before.
    alignas(64) std::atomic<uint64_t> claim{0};
    alignas(64) std::atomic<int64_t> finished{0};
    alignas(64) int64_t items = 0;  // this line is written only while no job runs
    strata::Work work = nullptr;
    void *context = nullptr;
    alignas(64) std::atomic<int> parked{0};
    std::atomic<int> holds{0};
    std::atomic<bool> stopping{false};
    std::mutex park_mutex;
    std::condition_variable wake;

    std::recursive_mutex job_mutex;
    std::vector<std::thread> workers;
    int threads = 1;
    int spin_us = 0;
    strata::ForkMark fork_mark;
    void *scratch = nullptr;
    size_t scratch_bytes = 0;
};

namespace strata {
namespace {

uint32_t unclaimed(uint64_t claim) { return static_cast<uint32_t>(claim); }

void work_off(StrataPool &pool, int thread) {
    int64_t done = 0;
    uint64_t word = pool.claim.load(std::memory_order_acquire);
    while (unclaimed(word) != 0) {
        if (!pool.claim.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel)) continue;
        pool.work(pool.context, pool.items - unclaimed(word), thread);
        ++done;
        word = pool.claim.load(std::memory_order_acquire);
    }
    // Before this the job cannot end, so the loop above never saw another one.
    if (done) pool.finished.fetch_add(done, std::memory_order_release);
}

// Until there is work or the pool ends. Sleeping starts after spin_us without work, never while the pool is held.
void wait_for_work(StrataPool &pool) {
    using Clock = std::chrono::steady_clock;
    const auto ready = [&] {
        return unclaimed(pool.claim.load()) != 0 || pool.stopping.load() || pool.holds.load() > 0;
    };
    const auto limit = Clock::now() + std::chrono::microseconds(pool.spin_us);
    Backoff backoff;
    do {
        for (int i = 0; i < 32; ++i) {
            if (unclaimed(pool.claim.load(std::memory_order_relaxed)) != 0) return;
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

void worker(StrataPool &pool, int thread, int cpu) {
    if (cpu >= 0) pin_this_thread(cpu);
    const Rounding rounding;
    while (!pool.stopping.load(std::memory_order_acquire)) {
        work_off(pool, thread);
        wait_for_work(pool);
    }
}

void start_workers(StrataPool &pool, bool pinned) {
    const std::vector<int> cpus = usable_cpus();
    const bool pin = pinned && pool.threads <= static_cast<int>(cpus.size());
    const SignalsBlocked blocked;
    for (int t = 1; t < pool.threads; ++t) {
        const int cpu = pin ? cpus[static_cast<size_t>(t)] : -1;
        pool.workers.emplace_back([&pool, t, cpu] { worker(pool, t, cpu); });
    }
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

void run_items(StrataPool *pool, int64_t items, Work work, void *context) {
    if (items <= 0) return;
    PoolGuard guard(pool);
    if (items == 1 || pool->workers.empty() || items > INT32_MAX || pool->fork_mark.in_child()) {
        for (int64_t item = 0; item < items; ++item) work(context, item, 0);
        return;
    }
    pool->items = items;
    pool->work = work;
    pool->context = context;
    pool->finished.store(0, std::memory_order_relaxed);
    const uint64_t job = (pool->claim.load(std::memory_order_relaxed) >> 32) + 1;
    pool->claim.store(job << 32 | static_cast<uint64_t>(items));
    wake_parked(*pool);
    work_off(*pool, 0);
    Backoff backoff;
    while (pool->finished.load(std::memory_order_acquire) != items) backoff.wait();
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
    pool->holds.fetch_add(1);
    strata::wake_parked(*pool);
}

void strata_pool_release(StrataPool *pool) { pool->holds.fetch_sub(1); }
