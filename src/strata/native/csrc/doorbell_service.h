// The doorbell service's threads and what they share: a coordinator that answers mailboxes, a watch that ends the wait
// for an answer that does not come. Knows no GPU: a mailbox is shared memory.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "read_cache.h"
#include "strata_native.h"
#include "table_rows.h"

namespace strata {

constexpr uint32_t kRaised = 0x7fffffff;  // the maximum for those who compare signed, too
constexpr uint32_t kOpen = 1;  // of a gate

inline uint32_t read_flag(const uint32_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

struct DoorbellLayer {
    StrataExpertLayout layout;
    std::vector<std::atomic<const void *>> blobs;  // change while windows are in flight
};

struct Box {
    StrataMailbox shared;
    // Held while a request is looked for and answered, and while a window begins, ends or rewinds: no answer is computed
    // for a window that has ended, and a coordinator that read the door before a rewind must not take its number for a
    // request of the next window.
    std::mutex mutex;
    std::atomic<bool> in_flight{false};
    std::atomic<uint32_t> answered{0};
    // The requests that were answered with an error, and the last of them; held for a copy only.
    std::mutex failure_mutex;
    uint64_t failures = 0;
    int32_t failed_layer = 0;
    char failure[STRATA_SENTENCE_BYTES] = {};
};

// A request's entries sorted by expert; the vectors are kept from request to request.
struct Request {
    int32_t layer, rows;
    std::vector<std::pair<int32_t, int32_t>> entries;  // expert, slot
    std::vector<int32_t> row_of, slots;
    std::vector<StrataExpertJob> jobs;
    std::vector<int32_t> experts;  // of the jobs
};

struct Counted {
    std::atomic<uint64_t> requests{0}, experts{0}, bytes{0}, busy_ns{0};
};

}  // namespace strata

struct StrataDoorbell {
    StrataPool *pool = nullptr;
    bool holds_pool = true;  // awake, while a window is in flight
    // What a request is answered with, and what it asks for places of.
    int32_t (*answer)(StrataDoorbell &service, const StrataMailbox &box) = nullptr;
    const char *asked_for = "experts";
    StrataReadCache *reads = nullptr;  // of experts that have no blob; null: all have one
    strata::TableRows tables;  // where rows of tables are asked for
    std::chrono::nanoseconds limit{};  // the longest that a request waits for its answer
    std::vector<strata::DoorbellLayer> layers;
    std::vector<strata::Box> boxes;
    strata::Request request;
    strata::Counted counted;
    std::atomic<int> in_flight{0};
    std::atomic<bool> stopping{false};
    std::atomic<bool> is_late{false};  // a request waited for longer than the limit
    pid_t owner = getpid();

    std::mutex mutex;
    std::condition_variable wake, wake_watch, ended;
    bool watch_sleeps = false, has_ended = false;  // the latter: the coordinator; under the mutex
    std::mutex stop_mutex;                         // of the two threads' ends
    std::thread coordinator, watch;
};

namespace strata {

// Answers a request for experts.
int32_t answer_experts(StrataDoorbell &service, const StrataMailbox &box);

// Starts the threads of a service that is whole otherwise, which is then the caller's.
int32_t start_service(std::unique_ptr<StrataDoorbell> made, StrataDoorbell **service);

// What rang in a box and has no answer counts as answered. Under the box's mutex and between windows: who rang was cut
// off and waits for nothing, and the next window may write over its request at any moment.
void settle(Box &box);

// What the two threads do until the service stops.
void coordinate(StrataDoorbell &service);
void keep_watch(StrataDoorbell &service);

// Both threads are told to end and every done flag rises to its maximum, whatever they are doing.
void raise_and_stop(StrataDoorbell &service);

}  // namespace strata
