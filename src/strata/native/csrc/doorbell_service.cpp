// How mailboxes are answered: a coordinator polls those of all windows in flight, runs the experts that a window asks
// for on the pool and raises its done flag. On every way out all done flags rise to their maximum, so that nobody who
// waits for one waits for ever.
#include "doorbell_service.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "errors.h"
#include "experts.h"
#include "pool.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;

// A flag never falls, whoever else raises it at the same moment.
void raise_flag(uint32_t *flag, uint32_t value) {
    uint32_t found = read_flag(flag);
    while (found < value &&
           !__atomic_compare_exchange_n(flag, &found, value, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
    }
}

// Done before the gate, always: who waits at the gate finds done there, and a window that lowers its gate behind a stop
// and then finds no raised done is let go by the gate's rise, which is still to come.
void raise_done(const StrataMailbox &box, uint32_t number, uint32_t gate) {
    raise_flag(box.done, number);
    if (box.gate) raise_flag(box.gate, gate);
}

void raise_all(StrataDoorbell &service) {
    for (Box &box : service.boxes) raise_done(box.shared, kRaised, kRaised);
}

// The shared memory is read once: what was checked is what is computed, whatever is written there meanwhile.
int32_t read_request(const StrataDoorbell &service, const StrataMailbox &box, Request &work) {
    work.layer = box.header[0], work.rows = box.header[1];
    const int32_t entries = box.header[2];
    if (work.layer < 0 || work.layer >= static_cast<int32_t>(service.layers.size()) || work.rows < 0 ||
        work.rows > box.max_rows || entries < 0 || entries > box.max_entries)
        return fail(STRATA_INVALID, "a request for layer %d, %d rows, %d entries", work.layer, work.rows, entries);
    const auto experts = static_cast<int32_t>(service.layers[static_cast<size_t>(work.layer)].blobs.size());
    work.entries.clear();
    for (int32_t i = 0; i < entries; ++i) {
        const int32_t expert = box.entries[2 * i], slot = box.entries[2 * i + 1];
        if (expert < 0 || expert >= experts)
            return fail(STRATA_INVALID, "layer %d has %d experts, none is number %d", work.layer, experts, expert);
        if (slot < 0 || slot >= work.rows * box.ranks)
            return fail(STRATA_INVALID, "slot %d of %d", slot, work.rows * box.ranks);
        work.entries.emplace_back(expert, slot);
    }
    std::sort(work.entries.begin(), work.entries.end());
    return STRATA_OK;
}

int32_t list_jobs(const DoorbellLayer &layer, int32_t ranks, bool is_read, Request &work) {
    work.row_of.clear(), work.slots.clear(), work.jobs.clear(), work.experts.clear();
    for (const auto &entry : work.entries) {
        work.row_of.push_back(entry.second / ranks);
        work.slots.push_back(entry.second);
    }
    for (size_t first = 0, end; first < work.entries.size(); first = end) {
        const int32_t expert = work.entries[first].first;
        for (end = first; end < work.entries.size() && work.entries[end].first == expert;) ++end;
        const void *blob = layer.blobs[static_cast<size_t>(expert)].load(std::memory_order_acquire);
        if (!blob && !is_read) return fail(STRATA_INVALID, "layer %d has no expert %d in memory", work.layer, expert);
        work.experts.push_back(expert);
        work.jobs.push_back({blob, work.row_of.data() + first, work.slots.data() + first,
                             static_cast<int32_t>(end - first), 0});
    }
    return STRATA_OK;
}

}  // namespace

int32_t answer_experts(StrataDoorbell &service, const StrataMailbox &box) {
    Request &work = service.request;
    if (const int32_t code = read_request(service, box, work)) return code;
    const DoorbellLayer &layer = service.layers[static_cast<size_t>(work.layer)];
    if (const int32_t code = list_jobs(layer, box.ranks, service.reads, work)) return code;
    service.counted.experts += work.jobs.size();
    service.counted.bytes += work.jobs.size() * static_cast<uint64_t>(layer.layout.blob_bytes);
    const ExpertInput input = {box.x, box.hidden, box.x ? nullptr : box.q, box.x ? nullptr : box.d, work.rows};
    // In one go, unless so many are missing that memory does not hold them together.
    for (size_t first = 0, count = work.jobs.size(); first < work.jobs.size(); first += count) {
        if (service.reads)
            if (const int32_t code = service.reads->provide(service.pool, work.layer, work.experts, work.jobs, first,
                                                            &service.stopping, count))
                return code;
        if (const int32_t code = run_experts(service.pool, layer.layout, &work.jobs[first],
                                             static_cast<int32_t>(count), input, box.out, box.hidden))
            return code;
    }
    return STRATA_OK;
}

namespace {

void note_failure(Box &box, int32_t layer) {
    const std::lock_guard<std::mutex> lock(box.failure_mutex);
    ++box.failures;
    box.failed_layer = layer;
    std::snprintf(box.failure, sizeof box.failure, "%s", strata_last_error());
}

// Waiting for files, which is no work.
uint64_t ns_read(const StrataDoorbell &service) { return service.reads ? service.reads->counted.ns.load() : 0; }

// Whether the box had rung.
bool serve(StrataDoorbell &service, Box &box) {
    const std::unique_lock<std::mutex> lock(box.mutex, std::try_to_lock);
    if (!lock.owns_lock() || !box.in_flight.load()) return false;
    const uint32_t rung = read_flag(box.shared.door);
    if (rung <= box.answered.load(std::memory_order_relaxed) || rung >= kRaised) return false;
    const Clock::time_point begin = Clock::now();
    const uint64_t read_ns = ns_read(service);
    // A failure is answered, too: the window goes on, the host finds it and fails the request.
    const int32_t code = guarded([&] { return service.answer(service, box.shared); });
    if (code) note_failure(box, service.request.layer);
    *box.shared.status = code;
    ++service.counted.requests;
    service.counted.busy_ns += static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count()) -
                               (ns_read(service) - read_ns);
    box.answered.store(rung, std::memory_order_release);
    raise_done(box.shared, rung, kOpen);
    return true;
}

// What was asked is noted before the flags rise: the window then goes on, and its next request overwrites this one.
void note_late(Box &box, uint32_t number, const char *asked_for, std::chrono::nanoseconds waited) {
    const int32_t *header = box.shared.header;
    const std::lock_guard<std::mutex> lock(box.failure_mutex);
    ++box.failures;
    box.failed_layer = header[0];
    std::snprintf(box.failure, sizeof box.failure,
                  "request %u (%d rows, %d places of %s) has had no answer for %.1f s", number, header[1],
                  header[2], asked_for, std::chrono::duration<double>(waited).count());
}

constexpr int kLooks = 8;  // of the watch at a request that may wait no longer than the limit

// How often the boxes' unanswered requests were seen. Looks are counted, not time: a process that was stopped (Ctrl-Z)
// and goes on has had no chance to answer meanwhile.
class Waits {
public:
    explicit Waits(size_t boxes) : seen_(boxes) {}

    // Looks at every box; whether a request has been waiting for longer than it may, which is then noted.
    bool find_late(StrataDoorbell &service) {
        bool found = false;
        for (size_t i = 0; i < seen_.size(); ++i) {
            Box &box = service.boxes[i];
            const uint32_t rung = read_flag(box.shared.door);
            const bool waits = box.in_flight.load() && rung > box.answered.load() && rung < kRaised;
            const uint64_t arrived =
                (service.reads ? service.reads->counted.experts.load() : 0) + service.tables.waited.load();
            if (!waits || seen_[i].number != rung || seen_[i].arrived != arrived)
                seen_[i] = {waits ? rung : 0, -1, arrived};
            if (!waits || ++seen_[i].looks < kLooks) continue;
            service.is_late.store(true);  // before the failure can be seen, which would look like an ordinary one
            note_late(box, rung, service.asked_for, service.limit);
            found = true;
        }
        return found;
    }

private:
    struct Seen {
        uint32_t number = 0;
        int looks = -1;  // behind the first
        uint64_t arrived = 0;  // experts or rows read from files: a disk that gives some is slow and not stuck
    };
    std::vector<Seen> seen_;
};

}  // namespace

void settle(Box &box) {
    const uint32_t rung = read_flag(box.shared.door);
    box.answered.store(rung, std::memory_order_release);
    raise_done(box.shared, rung, kOpen);
}

void coordinate(StrataDoorbell &service) {
    const CallersHome home(service.pool);
    Backoff backoff;
    while (!service.stopping.load(std::memory_order_acquire)) {
        if (service.in_flight.load(std::memory_order_acquire) == 0) {
            std::unique_lock<std::mutex> lock(service.mutex);
            service.wake.wait(lock, [&] { return service.in_flight.load() > 0 || service.stopping.load(); });
        }
        bool any = false;
        for (Box &box : service.boxes)
            if (!service.stopping.load(std::memory_order_acquire)) any |= serve(service, box);
        if (!any) backoff.wait();
    }
    raise_all(service);
    const std::lock_guard<std::mutex> lock(service.mutex);
    service.has_ended = true;
    service.ended.notify_all();
}

void keep_watch(StrataDoorbell &service) {
    Waits waits(service.boxes.size());
    std::unique_lock<std::mutex> lock(service.mutex);
    while (!service.stopping.load()) {
        if (service.in_flight.load() == 0) {
            service.watch_sleeps = true;
            service.wake_watch.wait(lock, [&] { return service.in_flight.load() > 0 || service.stopping.load(); });
            service.watch_sleeps = false;
        }
        service.wake_watch.wait_for(lock, service.limit / kLooks, [&] { return service.stopping.load(); });
        if (service.stopping.load() || !waits.find_late(service)) continue;
        lock.unlock();
        raise_and_stop(service);
        return;
    }
}

void raise_and_stop(StrataDoorbell &service) {
    {
        const std::lock_guard<std::mutex> lock(service.mutex);
        service.stopping.store(true);
    }
    service.wake.notify_all();
    service.wake_watch.notify_all();
    raise_all(service);
}

}  // namespace strata
