// The doorbell service's C ABI: made, told of windows and of blobs that move, looked at, stopped.
// How it answers is in doorbell_service.cpp.
#include <algorithm>
#include <cstdio>

#include "doorbell_service.h"
#include "errors.h"
#include "matrix.h"
#include "pool.h"
#include "signals.h"

namespace strata {
namespace {

constexpr std::chrono::seconds kMostOfAStop{2};  // a request takes milliseconds; one that is stuck is left behind

int32_t check_mailbox(const StrataMailbox &box, const std::vector<DoorbellLayer> &layers) {
    const bool has_rows = box.x || (box.q && box.d);
    if (!box.door || !box.done || !box.status || !box.header || !box.entries || !box.out || !has_rows)
        return fail(STRATA_INVALID, "a pointer of a mailbox is null");
    if (box.max_rows < 1 || box.max_entries < 1 || box.ranks < 1 || box.max_rows > INT32_MAX / box.ranks)
        return fail(STRATA_INVALID, "a mailbox of %d rows, %d entries, %d ranks", box.max_rows, box.max_entries,
                    box.ranks);
    for (const DoorbellLayer &layer : layers) {
        const StrataExpertLayout &layout = layer.layout;
        if (layout.gate.columns != box.hidden)
            return fail(STRATA_INVALID, "a mailbox of %d columns for experts of %d", box.hidden, layout.gate.columns);
        if (!box.x && !(is_packed(layout.gate.code) && is_packed(layout.up.code)))
            return fail(STRATA_INVALID, "experts in float codes need float32 activations in the mailbox");
    }
    return STRATA_OK;
}

bool is_aligned(const void *blob) { return reinterpret_cast<uintptr_t>(blob) % 64 == 0; }

int32_t copy_layers(const StrataLayerExperts *layers, int32_t count, std::vector<DoorbellLayer> &to) {
    for (int32_t i = 0; i < count; ++i) {
        const StrataLayerExperts &from = layers[i];
        if (!from.layout || !from.blobs || from.expert_count < 1 || from.layout->blob_bytes <= 0)
            return fail(STRATA_INVALID, "layer %d has no layout or no experts", i);
        std::vector<std::atomic<const void *>> blobs(static_cast<size_t>(from.expert_count));
        for (size_t e = 0; e < blobs.size(); ++e) blobs[e].store(from.blobs[e]);
        to.push_back({*from.layout, std::move(blobs)});
    }
    return STRATA_OK;
}

Box *find_box(StrataDoorbell *service, int32_t mailbox) {
    const bool exists = service && mailbox >= 0 && mailbox < static_cast<int32_t>(service->boxes.size());
    return exists ? &service->boxes[static_cast<size_t>(mailbox)] : nullptr;
}

// The box, locked, if it is there and the service has threads; else null, with an error. The lock waits for an answer
// that is being written, as long as one may take.
int32_t lock_box(StrataDoorbell *service, int32_t mailbox, Box *&box, std::unique_lock<std::mutex> &lock) {
    box = find_box(service, mailbox);
    if (!box) return fail(STRATA_INVALID, "there is no mailbox %d", mailbox);
    if (service->owner != getpid())
        return fail(STRATA_STOPPED, "the doorbell service stayed in the process that this one was forked from");
    lock = std::unique_lock<std::mutex>(box->mutex, std::defer_lock);
    const auto latest = std::chrono::steady_clock::now() + service->limit;
    for (Backoff backoff; !lock.try_lock(); backoff.wait())
        if (std::chrono::steady_clock::now() > latest)
            return fail(STRATA_STOPPED, "the doorbell service has not answered a request for longer than it may take");
    return STRATA_OK;
}

void release_pool(StrataDoorbell &service) {
    if (service.holds_pool) strata_pool_release(service.pool);
}

// 0: the coordinator has ended, and no thread is left.
int32_t end_threads(StrataDoorbell &service) {
    const std::lock_guard<std::mutex> stop(service.stop_mutex);
    if (service.watch.joinable()) service.watch.join();
    if (!service.coordinator.joinable()) return STRATA_OK;
    {
        std::unique_lock<std::mutex> lock(service.mutex);
        if (!service.ended.wait_for(lock, kMostOfAStop, [&] { return service.has_ended; }))
            return fail(STRATA_STOPPED, "the thread that answers windows does not end");
    }
    service.coordinator.join();
    for (Box &box : service.boxes)
        if (box.in_flight.exchange(false)) release_pool(service);
    return STRATA_OK;
}

}  // namespace

int32_t start_service(std::unique_ptr<StrataDoorbell> made, StrataDoorbell **service) {
    const SignalsBlocked blocked;
    made->coordinator = std::thread([of = made.get()] { coordinate(*of); });
    try {
        made->watch = std::thread([of = made.get()] { keep_watch(*of); });
    } catch (...) {
        strata_doorbell_stop(made.get());
        throw;
    }
    *service = made.release();
    return STRATA_OK;
}

}  // namespace strata

int32_t strata_doorbell_create(StrataPool *pool, const StrataLayerExperts *layers, int32_t layer_count,
                               const StrataMailbox *mailboxes, int32_t mailbox_count, int32_t limit_ms,
                               StrataDoorbell **service) {
    using namespace strata;
    if (!pool || !layers || layer_count < 1 || !mailboxes || mailbox_count < 1 || limit_ms < 1 || !service)
        return fail(STRATA_INVALID, "a service of %d layers and %d mailboxes that answers within %d ms", layer_count,
                    mailbox_count, limit_ms);
    *service = nullptr;
    return guarded([&]() -> int32_t {
        auto made = std::make_unique<StrataDoorbell>();
        made->pool = pool;
        made->answer = answer_experts;
        made->limit = std::chrono::milliseconds(limit_ms);
        made->boxes = std::vector<Box>(static_cast<size_t>(mailbox_count));
        if (const int32_t code = copy_layers(layers, layer_count, made->layers)) return code;
        for (int32_t i = 0; i < mailbox_count; ++i) {
            if (const int32_t code = check_mailbox(mailboxes[i], made->layers)) return code;
            made->boxes[static_cast<size_t>(i)].shared = mailboxes[i];
        }
        return start_service(std::move(made), service);
    });
}

int32_t strata_doorbell_read(StrataDoorbell *service, StrataReadCache *cache) {
    using namespace strata;
    if (!service || !cache) return fail(STRATA_INVALID, "no doorbell service, or no cache to read into");
    const std::vector<FileLayer> &layers = cache->files.layers();
    bool fits = layers.size() == service->layers.size() && cache->blobs() > 0;
    for (size_t i = 0; fits && i < layers.size(); ++i)
        fits = layers[i].layout.blob_bytes == service->layers[i].layout.blob_bytes &&
               static_cast<size_t>(layers[i].experts) == service->layers[i].blobs.size();
    if (!fits) return fail(STRATA_INVALID, "the cache has no room for a blob, or holds other layers than the service");
    const std::lock_guard<std::mutex> lock(service->mutex);  // both threads look at it under this or behind a window
    if (service->in_flight.load() > 0) return fail(STRATA_INVALID, "a window is in flight");
    service->reads = cache;
    return STRATA_OK;
}

int32_t strata_doorbell_begin(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box;
    {
        std::unique_lock<std::mutex> lock;
        if (const int32_t code = lock_box(service, mailbox, box, lock)) return code;
        if (box->in_flight.load()) return fail(STRATA_INVALID, "mailbox %d is in flight", mailbox);
        if (service->stopping.load()) return fail(STRATA_STOPPED, "the doorbell service was stopped");
        settle(*box);
        box->in_flight.store(true);
    }
    if (service->holds_pool) strata_pool_hold(service->pool);
    bool watch_sleeps;
    {
        const std::lock_guard<std::mutex> lock(service->mutex);  // a coordinator about to sleep sees it or is called
        service->in_flight.fetch_add(1);
        watch_sleeps = service->watch_sleeps;
    }
    service->wake.notify_one();
    if (watch_sleeps) service->wake_watch.notify_one();
    return STRATA_OK;
}

int32_t strata_doorbell_end(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box;
    {
        std::unique_lock<std::mutex> lock;
        if (const int32_t code = lock_box(service, mailbox, box, lock)) return code;
        if (!box->in_flight.exchange(false)) {
            if (service->stopping.load()) return STRATA_OK;  // the stop ended it
            return fail(STRATA_INVALID, "mailbox %d is not in flight", mailbox);
        }
    }
    service->in_flight.fetch_sub(1);
    release_pool(*service);
    return STRATA_OK;
}

int32_t strata_doorbell_rewind(StrataDoorbell *service, int32_t mailbox) {
    using namespace strata;
    Box *box;
    std::unique_lock<std::mutex> lock;
    if (const int32_t code = lock_box(service, mailbox, box, lock)) return code;
    if (box->in_flight.load()) return fail(STRATA_INVALID, "mailbox %d is in flight", mailbox);
    if (service->stopping.load()) return fail(STRATA_STOPPED, "the doorbell service was stopped");
    __atomic_store_n(box->shared.door, 0, __ATOMIC_RELEASE);
    __atomic_store_n(box->shared.done, 0, __ATOMIC_RELEASE);
    return STRATA_OK;
}

int32_t strata_doorbell_place(StrataDoorbell *service, int32_t layer, int32_t expert, const void *blob) {
    using namespace strata;
    if (!service || layer < 0 || layer >= static_cast<int32_t>(service->layers.size()))
        return fail(STRATA_INVALID, "the doorbell service has no layer %d", layer);
    auto &blobs = service->layers[static_cast<size_t>(layer)].blobs;
    if (expert < 0 || expert >= static_cast<int32_t>(blobs.size()) || !is_aligned(blob))
        return fail(STRATA_INVALID, "layer %d has no expert %d, or its blob is misaligned", layer, expert);
    blobs[static_cast<size_t>(expert)].store(blob, std::memory_order_release);
    return STRATA_OK;
}

int32_t strata_doorbell_counters(const StrataDoorbell *service, StrataDoorbellCounters *counters) {
    using namespace strata;
    if (!service || !counters) return fail(STRATA_INVALID, "no doorbell service, or no place for its counters");
    const Counted &counted = service->counted;
    *counters = {counted.requests.load(), counted.experts.load(), counted.bytes.load(), counted.busy_ns.load()};
    return STRATA_OK;
}

int32_t strata_doorbell_state(StrataDoorbell *service, int32_t mailbox, StrataDoorbellState *state) {
    using namespace strata;
    Box *box = find_box(service, mailbox);
    if (!box || !state) return fail(STRATA_INVALID, "there is no mailbox %d, or no place for its state", mailbox);
    const StrataMailbox &shared = box->shared;
    const auto header = [&](int field) { return __atomic_load_n(&shared.header[field], __ATOMIC_RELAXED); };
    state->door = read_flag(shared.door), state->done = read_flag(shared.done);
    state->answered = box->answered.load();
    state->layer = header(0), state->rows = header(1), state->entries = header(2);
    state->is_in_flight = box->in_flight.load(), state->is_late = service->is_late.load();
    const std::lock_guard<std::mutex> lock(box->failure_mutex);
    state->failures = box->failures;
    state->failed_layer = box->failed_layer, state->reserved = 0;
    std::copy(std::begin(box->failure), std::end(box->failure), state->failure);
    return STRATA_OK;
}

int32_t strata_doorbell_stop(StrataDoorbell *service) {
    if (!service || service->owner != getpid()) return STRATA_OK;  // a forked child has no threads
    strata::raise_and_stop(*service);
    return strata::end_threads(*service);
}

int32_t strata_doorbell_destroy(StrataDoorbell *service) {
    if (!service || service->owner != getpid()) return STRATA_OK;
    if (const int32_t code = strata_doorbell_stop(service)) return code;
    delete service;
    return STRATA_OK;
}
