// The doorbell service: a coordinator polls the mailboxes of all windows in flight, runs the experts that a window asks
// for on the pool and raises its done flag. On every way out all done flags rise to their maximum, so that nobody who
// waits for one waits for ever. Knows no GPU: a mailbox is shared memory.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "errors.h"
#include "experts.h"
#include "matrix.h"
#include "pool.h"
#include "signals.h"
#include "strata_native.h"

namespace strata {
namespace {

constexpr uint32_t kRaised = 0x7fffffff;  // the maximum for those who compare signed, too

uint32_t read_flag(const uint32_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

// A flag never falls, even if a stop came first.
void raise_flag(uint32_t *flag, uint32_t value) {
    if (read_flag(flag) < value) __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

struct Layer {
    StrataExpertLayout layout;
    std::vector<const void *> blobs;
};

struct Box {
    StrataMailbox shared;
    // Held while a request is looked for and answered, and while a window begins, ends or rewinds: a coordinator that
    // read the door before a rewind must not take its number for a request of the next window.
    std::mutex mutex;
    bool in_flight = false;
    uint32_t answered = 0;
};

// A request's entries sorted by expert; the vectors are kept from request to request.
struct Request {
    std::vector<std::pair<int32_t, int32_t>> entries;  // expert, slot
    std::vector<int32_t> rows, slots;
    std::vector<StrataExpertJob> jobs;
};

}  // namespace
}  // namespace strata

struct StrataDoorbell {
    StrataPool *pool = nullptr;
    std::vector<strata::Layer> layers;
    std::vector<strata::Box> boxes;
    strata::Request request;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<int> in_flight{0};
    std::atomic<bool> stopping{false};
    std::thread coordinator;
    pid_t owner = getpid();
};

namespace strata {
namespace {

int32_t read_request(const StrataDoorbell &service, const StrataMailbox &box, Request &work) {
    const int32_t layer = box.header[0], rows = box.header[1], entries = box.header[2];
    if (layer < 0 || layer >= static_cast<int32_t>(service.layers.size()) || rows < 0 || rows > box.max_rows ||
        entries < 0 || entries > box.max_entries)
        return fail(STRATA_INVALID, "a request for layer %d, %d rows, %d entries", layer, rows, entries);
    const auto &blobs = service.layers[static_cast<size_t>(layer)].blobs;
    work.entries.clear();
    for (int32_t i = 0; i < entries; ++i) {
        const int32_t expert = box.entries[2 * i], slot = box.entries[2 * i + 1];
        if (expert < 0 || expert >= static_cast<int32_t>(blobs.size()) || !blobs[static_cast<size_t>(expert)])
            return fail(STRATA_INVALID, "layer %d has no expert %d in memory", layer, expert);
        if (slot < 0 || slot >= rows * box.ranks) return fail(STRATA_INVALID, "slot %d of %d", slot, rows * box.ranks);
        work.entries.emplace_back(expert, slot);
    }
    std::sort(work.entries.begin(), work.entries.end());
    return STRATA_OK;
}

void list_jobs(const Layer &layer, int32_t ranks, Request &work) {
    work.rows.clear(), work.slots.clear(), work.jobs.clear();
    for (const auto &entry : work.entries) {
        work.rows.push_back(entry.second / ranks);
        work.slots.push_back(entry.second);
    }
    for (size_t first = 0, end; first < work.entries.size(); first = end) {
        const int32_t expert = work.entries[first].first;
        for (end = first; end < work.entries.size() && work.entries[end].first == expert;) ++end;
        work.jobs.push_back({layer.blobs[static_cast<size_t>(expert)], work.rows.data() + first,
                             work.slots.data() + first, static_cast<int32_t>(end - first), 0});
    }
}

int32_t answer(StrataDoorbell &service, const StrataMailbox &box) {
    Request &work = service.request;
    if (const int32_t code = read_request(service, box, work)) return code;
    const Layer &layer = service.layers[static_cast<size_t>(box.header[0])];
    list_jobs(layer, box.ranks, work);
    const ExpertInput input = {box.x, box.hidden, box.x ? nullptr : box.q, box.x ? nullptr : box.d, box.header[1]};
    return run_experts(service.pool, layer.layout, work.jobs.data(), static_cast<int32_t>(work.jobs.size()), input,
                       box.out, box.hidden);
}

// Whether the box had rung.
bool serve(StrataDoorbell &service, Box &box) {
    const std::unique_lock<std::mutex> lock(box.mutex, std::try_to_lock);
    if (!lock.owns_lock() || !box.in_flight) return false;
    const uint32_t rung = read_flag(box.shared.door);
    if (rung <= box.answered || rung >= kRaised) return false;
    // A failure is answered, too: the window goes on, the host finds the status and fails the request.
    *box.shared.status = guarded([&] { return answer(service, box.shared); });
    box.answered = rung;
    raise_flag(box.shared.done, rung);
    return true;
}

// The flag itself tells of the stop; the status stays with the last answer, which its window may be reading.
void raise_all(StrataDoorbell &service) {
    for (Box &box : service.boxes) raise_flag(box.shared.done, kRaised);
}

void coordinate(StrataDoorbell &service) {
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
}

int32_t check_mailbox(const StrataMailbox &box, const std::vector<Layer> &layers) {
    const bool has_rows = box.x || (box.q && box.d);
    if (!box.door || !box.done || !box.status || !box.header || !box.entries || !box.out || !has_rows)
        return fail(STRATA_INVALID, "a pointer of a mailbox is null");
    if (box.max_rows < 1 || box.max_entries < 1 || box.ranks < 1 || box.max_rows > INT32_MAX / box.ranks)
        return fail(STRATA_INVALID, "a mailbox of %d rows, %d entries, %d ranks", box.max_rows, box.max_entries,
                    box.ranks);
    for (const Layer &layer : layers) {
        const StrataExpertLayout &layout = layer.layout;
        if (layout.gate.columns != box.hidden)
            return fail(STRATA_INVALID, "a mailbox of %d columns for experts of %d", box.hidden, layout.gate.columns);
        if (!box.x && !(is_packed(layout.gate.code) && is_packed(layout.up.code)))
            return fail(STRATA_INVALID, "experts in float codes need float32 activations in the mailbox");
    }
    return STRATA_OK;
}

int32_t copy_layers(const StrataLayerExperts *layers, int32_t count, std::vector<Layer> &to) {
    for (int32_t i = 0; i < count; ++i) {
        const StrataLayerExperts &from = layers[i];
        if (!from.layout || !from.blobs || from.expert_count < 1 || from.layout->blob_bytes <= 0)
            return fail(STRATA_INVALID, "layer %d has no layout or no experts", i);
        to.push_back({*from.layout, std::vector<const void *>(from.blobs, from.blobs + from.expert_count)});
    }
    return STRATA_OK;
}

Box *find_box(StrataDoorbell *service, int32_t mailbox) {
    const bool exists = service && mailbox >= 0 && mailbox < static_cast<int32_t>(service->boxes.size());
    return exists ? &service->boxes[static_cast<size_t>(mailbox)] : nullptr;
}

}  // namespace
}  // namespace strata

int32_t strata_doorbell_create(StrataPool *pool, const StrataLayerExperts *layers, int32_t layer_count,
                               const StrataMailbox *mailboxes, int32_t mailbox_count, StrataDoorbell **service) {
    using namespace strata;
    if (!pool || !layers || layer_count < 1 || !mailboxes || mailbox_count < 1 || !service)
        return fail(STRATA_INVALID, "a service of %d layers and %d mailboxes", layer_count, mailbox_count);
    *service = nullptr;
    return guarded([&]() -> int32_t {
        auto made = std::make_unique<StrataDoorbell>();
        made->pool = pool;
        made->boxes = std::vector<Box>(static_cast<size_t>(mailbox_count));
        if (const int32_t code = copy_layers(layers, layer_count, made->layers)) return code;
        for (int32_t i = 0; i < mailbox_count; ++i) {
            if (const int32_t code = check_mailbox(mailboxes[i], made->layers)) return code;
            made->boxes[static_cast<size_t>(i)].shared = mailboxes[i];
        }
        const SignalsBlocked blocked;
        made->coordinator = std::thread([of = made.get()] { coordinate(*of); });
        *service = made.release();
        return STRATA_OK;
    });
}

int32_t strata_doorbell_begin(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box = find_box(service, mailbox);
    if (!box) return fail(STRATA_INVALID, "there is no mailbox %d", mailbox);
    {
        const std::lock_guard<std::mutex> lock(box->mutex);
        if (box->in_flight) return fail(STRATA_INVALID, "mailbox %d is in flight", mailbox);
        if (service->stopping.load()) return fail(STRATA_STOPPED, "the doorbell service was stopped");
        box->in_flight = true;
        box->answered = read_flag(box->shared.done);
    }
    strata_pool_hold(service->pool);
    {
        const std::lock_guard<std::mutex> lock(service->mutex);  // a coordinator about to sleep sees it or is called
        service->in_flight.fetch_add(1);
    }
    service->wake.notify_one();
    return STRATA_OK;
}

int32_t strata_doorbell_end(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box = find_box(service, mailbox);
    if (!box) return fail(STRATA_INVALID, "there is no mailbox %d", mailbox);
    {
        const std::lock_guard<std::mutex> lock(box->mutex);  // waits for an answer that is being written
        if (!box->in_flight) return fail(STRATA_INVALID, "mailbox %d is not in flight", mailbox);
        box->in_flight = false;
    }
    service->in_flight.fetch_sub(1);
    strata_pool_release(service->pool);
    return STRATA_OK;
}

int32_t strata_doorbell_rewind(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box = find_box(service, mailbox);
    if (!box) return fail(STRATA_INVALID, "there is no mailbox %d", mailbox);
    const std::lock_guard<std::mutex> lock(box->mutex);
    if (box->in_flight) return fail(STRATA_INVALID, "mailbox %d is in flight", mailbox);
    if (service->stopping.load()) return fail(STRATA_STOPPED, "the doorbell service was stopped");
    __atomic_store_n(box->shared.door, 0, __ATOMIC_RELEASE);
    __atomic_store_n(box->shared.done, 0, __ATOMIC_RELEASE);
    return STRATA_OK;
}

void strata_doorbell_stop(StrataDoorbell *service) {
    if (!service || service->owner != getpid()) return;  // a forked child has no coordinator
    {
        std::lock_guard<std::mutex> lock(service->mutex);
        service->stopping.store(true);
    }
    service->wake.notify_all();
    if (service->coordinator.joinable()) service->coordinator.join();
    strata::raise_all(*service);
}

void strata_doorbell_destroy(StrataDoorbell *service) {
    if (!service || service->owner != getpid()) return;
    strata_doorbell_stop(service);
    for (const strata::Box &box : service->boxes)
        if (box.in_flight) strata_pool_release(service->pool);
    delete service;
}
