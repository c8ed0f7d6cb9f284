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

#include "strata_native.h"

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
    // Held while a request is looked for and answered, and while a window begins, ends or rewinds: a coordinator that
    // read the door before a rewind must not take its number for a request of the next window.
    std::mutex mutex;
    std::atomic<bool> in_flight{false};
    std::atomic<uint32_t> answered{0};
    // The requests that were answered with an error, and the last of them; held for a copy only.
    std::mutex failure_mutex;
    uint64_t failures = 0;
    int32_t failed_layer = 0, failed_code = 0;
    char failure[STRATA_SENTENCE_BYTES] = {};
};

// A request's entries sorted by expert; the vectors are kept from request to request.
struct Request {
    int32_t layer, rows;
    std::vector<std::pair<int32_t, int32_t>> entries;  // expert, slot
    std::vector<int32_t> row_of, slots;
    std::vector<StrataExpertJob> jobs;
};

struct Counted {
    std::atomic<uint64_t> requests{0}, experts{0}, bytes{0}, busy_ns{0};
};

}  // namespace strata

struct StrataDoorbell {
    StrataPool *pool = nullptr;
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

// What the two threads do until the service stops.
void coordinate(StrataDoorbell &service);
void keep_watch(StrataDoorbell &service);

// Both threads are told to end and every done flag rises to its maximum, whatever they are doing.
void raise_and_stop(StrataDoorbell &service);

}  // namespace strata
