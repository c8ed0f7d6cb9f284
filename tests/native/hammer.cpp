// Hammers pool, matrices, experts, packing and doorbell from many threads at once, cells from one, for the sanitizers:
// `make sanitize`.
// Results are compared with those of one thread; what they must be is held by the Python tests.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "hammer_cells.h"
#include "hammer_packing.h"
#include "hammer_reads.h"
#include "hammer_tables.h"
#include "pool.h"
#include "strata_native.h"

namespace {

void require(bool truth, const char *what) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s (last error: %s)\n", what, strata_last_error());
    std::exit(1);
}

struct Free {
    void operator()(void *at) const { std::free(at); }
};
using Bytes = std::unique_ptr<char, Free>;

Bytes aligned(int64_t size) {
    Bytes made(static_cast<char *>(std::aligned_alloc(64, static_cast<size_t>((size + 63) / 64 * 64))));
    std::memset(made.get(), 0, static_cast<size_t>(size));
    return made;
}

StrataMatrix form(int32_t code, int32_t rows, int32_t columns) {
    StrataMatrix m{};
    m.code = code, m.scale_kind = STRATA_SCALE_F16, m.sub_block = 32, m.rows = rows, m.columns = columns;
    for (int i = 0; i < 16; ++i) m.table[i] = static_cast<int8_t>(i - 8);
    m.post_scale = 1.0f;
    return m;
}

// Experts of random codes whose scales are all 2^-6, and rows that choose them: one row (a stream), a few, and enough for
// panels.
struct World {
    StrataExpertLayout layout{};
    std::vector<Bytes> blobs;
    std::vector<float> x;
    static constexpr int kHidden = 96, kWidth = 96, kExperts = 5, kRows = 13, kRanks = 2;
    static constexpr int kRowsOf[] = {1, 3, 9, 13};  // of every expert that is chosen

    World() {
        layout.gate = layout.up = form(STRATA_CODE4, kWidth, kHidden);
        layout.down = form(STRATA_CODE8, kHidden, kWidth);
        require(strata_expert_layout(&layout) == STRATA_OK, "layout");
        std::mt19937 random(1);
        for (int e = 0; e < kExperts; ++e) {
            blobs.push_back(aligned(layout.blob_bytes));
            char *blob = blobs.back().get();
            for (int64_t i = 0; i < layout.offsets[0][1]; ++i) blob[i] = static_cast<char>(random());
            for (int m = 0; m < 3; ++m) {
                auto *scales = reinterpret_cast<uint16_t *>(blob + layout.offsets[m][1]);
                for (int i = 0; i < kWidth * kHidden / 32; ++i) scales[i] = 0x2400;
            }
            const float ones[] = {1.0f, 1.0f, 1.0f};
            std::memcpy(blob + layout.post_scales_offset, ones, sizeof ones);
        }
        for (int i = 0; i < kRows * kHidden; ++i) x.push_back(static_cast<float>(random() % 200) * 0.01f - 1.0f);
    }

    static int expert_of(int slot) {
        int expert = 0;
        while (slot >= kRowsOf[expert]) slot -= kRowsOf[expert++];
        return expert;
    }

    std::vector<float> run(StrataPool *pool) const {
        std::vector<int32_t> rows, slots;
        for (int slot = 0; slot < kRows * kRanks; ++slot) rows.push_back(slot / kRanks), slots.push_back(slot);
        std::vector<StrataExpertJob> jobs;
        for (int e = 0, first = 0; e < 4; first += kRowsOf[e++])
            jobs.push_back({blobs[e].get(), &rows[first], &slots[first], kRowsOf[e], 0});
        std::vector<float> out(static_cast<size_t>(kRows * kRanks * kHidden));
        const int32_t code = strata_experts(pool, &layout, jobs.data(), 4, x.data(), kHidden, kRows,
                                            out.data(), kHidden);
        require(code == STRATA_OK, "experts");
        return out;
    }
};

StrataPool *make_pool(int threads, int spin_us) {
    StrataPool *pool = nullptr;
    require(strata_pool_create(threads, threads == 2, spin_us, &pool) == STRATA_OK, "pool");
    return pool;
}

// Jobs of every size follow each other at once: a worker that comes late must never claim into the next one.
void hammer_items(int rounds) {
    StrataPool *pool = make_pool(4, 5);
    std::vector<std::atomic<int>> hits(64);
    for (int round = 0; round < rounds; ++round) {
        const int items = 1 + round % 64;
        for (auto &hit : hits) hit.store(0);
        strata::for_items(pool, items, [&](int64_t item, int) { hits[static_cast<size_t>(item)].fetch_add(1); });
        for (int i = 0; i < 64; ++i) require(hits[static_cast<size_t>(i)] == (i < items ? 1 : 0), "every item once");
        const int shares = 1 + round % 4;
        strata::for_shares(pool, shares, [&](int64_t share, int) { hits[static_cast<size_t>(share)].fetch_add(1); });
        for (int i = 0; i < 4; ++i)
            require(hits[static_cast<size_t>(i)] == (i < items) + (i < shares), "every share once");
        if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // until they sleep
    }
    strata_pool_destroy(pool);
}

void hammer_lives(const World &world, int rounds) {
    StrataPool *alone = make_pool(1, 0);
    const std::vector<float> wanted = world.run(alone);
    strata_pool_destroy(alone);
    for (int round = 0; round < rounds; ++round) {
        StrataPool *pool = make_pool(1 + round % 5, round % 3 * 20);
        if (round % 2) strata_pool_hold(pool);
        require(world.run(pool) == wanted, "a new pool's result");
        if (round % 2) strata_pool_release(pool);
        strata_pool_destroy(pool);
    }
}

void hammer_callers(const World &world, int rounds) {
    StrataPool *pool = make_pool(3, 10);
    const std::vector<float> wanted = world.run(pool);
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([&] {
            for (int round = 0; round < rounds; ++round) require(world.run(pool) == wanted, "a caller's result");
        });
    for (std::thread &caller : callers) caller.join();
    strata_pool_destroy(pool);
}

// Matrices of two codes times the same rows, from one row to several panels.
void hammer_products(int rounds) {
    constexpr int kColumns = 96, kRows = 70;
    const StrataMatrix forms[] = {form(STRATA_CODE4, kRows, kColumns), form(STRATA_F32, kRows, kColumns)};
    const Bytes codes = aligned(80 * kColumns), scales = aligned(80 * kColumns), values = aligned(80 * kColumns * 4);
    std::mt19937 random(2);
    for (int i = 0; i < 80 * kColumns / 2; ++i) codes.get()[i] = static_cast<char>(random());
    for (int i = 0; i < 80 * kColumns / 32; ++i) reinterpret_cast<uint16_t *>(scales.get())[i] = 0x2400;
    for (int i = 0; i < 80 * kColumns; ++i) reinterpret_cast<float *>(values.get())[i] = static_cast<float>(i % 7);
    StrataMatrix packed = forms[0], floats = forms[1];
    packed.codes = codes.get(), packed.scales = scales.get(), floats.codes = values.get();
    const std::vector<float> x(static_cast<size_t>(200 * kColumns), 0.5f);
    const auto multiply = [&](StrataPool *pool, int count) {
        std::vector<float> y(static_cast<size_t>(2 * count * kRows));
        const StrataProduct products[] = {{&packed, y.data(), kRows}, {&floats, y.data() + count * kRows, kRows}};
        require(strata_matrices_rows(pool, products, 2, x.data(), count, kColumns) == STRATA_OK, "products");
        return y;
    };
    StrataPool *pool = make_pool(4, 10), *alone = make_pool(1, 0);
    for (int round = 0; round < rounds; ++round)
        for (const int count : {1, 5, 40, 200})
            require(multiply(pool, count) == multiply(alone, count), "products of several threads");
    strata_pool_destroy(pool);
    strata_pool_destroy(alone);
}

// One mailbox and a thread that plays the GPU, which waits for the number or at the gate.
struct Window {
    uint32_t door = 0, done = 0, gate = 1;
    bool has_gate = false;
    int32_t status = 0, header[3] = {};
    std::vector<int32_t> entries = std::vector<int32_t>(2 * World::kRows * World::kRanks);
    std::vector<float> x, out;

    explicit Window(const World &world)
        : x(world.x), out(static_cast<size_t>(World::kRows * World::kRanks * World::kHidden)) {}

    StrataMailbox mailbox() {
        return {&door, &done, has_gate ? &gate : nullptr, &status, header, entries.data(), x.data(), nullptr, nullptr,
                out.data(), World::kRows, World::kRows * World::kRanks, World::kRanks, World::kHidden};
    }

    // Asks once; false when the service was stopped.
    bool ask() {
        header[0] = 0, header[1] = World::kRows, header[2] = World::kRows * World::kRanks;
        for (int slot = 0; slot < header[2]; ++slot) entries[2 * slot] = World::expert_of(slot), entries[2 * slot + 1] = slot;
        return ring();
    }

    bool ring() {
        if (has_gate) lower_gate();
        const uint32_t number = door + 1;
        __atomic_store_n(&door, number, __ATOMIC_RELEASE);
        if (has_gate) {
            while (__atomic_load_n(&gate, __ATOMIC_ACQUIRE) < 1) std::this_thread::yield();
            require(__atomic_load_n(&done, __ATOMIC_ACQUIRE) >= number, "an answer behind an open gate");
        }
        uint32_t found;
        while ((found = __atomic_load_n(&done, __ATOMIC_ACQUIRE)) < number) std::this_thread::yield();
        return found != 0x7fffffff;
    }

    void lower_gate() {
        __atomic_store_n(&gate, 0, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&done, __ATOMIC_SEQ_CST) == 0x7fffffff) __atomic_store_n(&gate, 1, __ATOMIC_SEQ_CST);
    }
};

void hammer_doorbell(const World &world, int rounds, bool stops_early) {
    StrataPool *pool = make_pool(3, 10);
    const std::vector<float> wanted = world.run(pool);
    std::vector<const void *> blobs;
    for (const Bytes &blob : world.blobs) blobs.push_back(blob.get());
    const StrataLayerExperts layer = {&world.layout, blobs.data(), World::kExperts, 0};
    std::vector<Window> windows(4, Window(world));
    windows[1].has_gate = windows[3].has_gate = true;
    std::vector<StrataMailbox> boxes;
    for (Window &window : windows) boxes.push_back(window.mailbox());
    StrataDoorbell *service = nullptr;
    require(strata_doorbell_create(pool, &layer, 1, boxes.data(), 4, 60000, &service) == STRATA_OK, "service");
    std::atomic<bool> moves{true};
    std::thread mover([&] {
        for (int32_t expert = 0; moves; expert = (expert + 1) % World::kExperts) {
            const void *blob = blobs[static_cast<size_t>(expert)];
            require(strata_doorbell_place(service, 0, expert, blob) == STRATA_OK, "a blob's place");
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    });
    std::vector<std::thread> players;
    for (int w = 0; w < 4; ++w)
        players.emplace_back([&, w] {
            Window &window = windows[static_cast<size_t>(w)];
            for (int round = 0; round < rounds; ++round) {
                if (strata_doorbell_begin(service, w) != STRATA_OK) break;
                const bool answered = window.ask() && window.ask();
                if (answered) require(window.status == 0 && window.out == wanted, "a window's rows");
                strata_doorbell_end(service, w);
                if (!answered) {  // what was launched goes on to its end, though nobody is there any more
                    for (int layer = 0; layer < 20; ++layer) require(!window.ring(), "an answer behind a stop");
                    break;
                }
                if (round % 8 == 7) strata_doorbell_rewind(service, w);
            }
        });
    if (stops_early) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        strata_doorbell_stop(service);
    }
    for (std::thread &player : players) player.join();
    moves = false;
    mover.join();
    StrataDoorbellCounters counters;
    require(strata_doorbell_counters(service, &counters) == STRATA_OK, "counters");
    require(counters.requests > 0 && counters.bytes % static_cast<uint64_t>(world.layout.blob_bytes) == 0, "sums");
    require(strata_doorbell_destroy(service) == STRATA_OK, "the end of a service");
    for (const Window &window : windows) require(window.done == 0x7fffffff, "every flag raised");
    strata_pool_destroy(pool);
}

// Stops at every moment of a window's asking: between the gate's fall and the look at done, too.
void hammer_gate(const World &world, int rounds) {
    StrataPool *pool = make_pool(2, 10);
    std::vector<const void *> blobs;
    for (const Bytes &blob : world.blobs) blobs.push_back(blob.get());
    const StrataLayerExperts layer = {&world.layout, blobs.data(), World::kExperts, 0};
    for (int round = 0; round < rounds; ++round) {
        Window window(world);
        window.has_gate = true;
        StrataMailbox box = window.mailbox();
        StrataDoorbell *service = nullptr;
        require(strata_doorbell_create(pool, &layer, 1, &box, 1, 60000, &service) == STRATA_OK, "service");
        require(strata_doorbell_begin(service, 0) == STRATA_OK, "a window");
        std::atomic<bool> falls{false};
        std::thread player([&] {
            falls = true;
            for (int fall = 0; fall < 50; ++fall) window.lower_gate();
            for (int asked = 0; window.ask(); ++asked) require(asked < 1000000, "no end of answers");
            for (int asked = 0; asked < 5; ++asked) require(!window.ring(), "an answer behind a stop");
        });
        while (!falls) std::this_thread::yield();
        for (std::atomic<int> turn{0}; turn < 20 * (round % 40);) ++turn;
        require(strata_doorbell_stop(service) == STRATA_OK, "a stop");
        player.join();
        require(strata_doorbell_destroy(service) == STRATA_OK && window.gate >= 1, "an open gate");
    }
    strata_pool_destroy(pool);
}

// A pool that serves somebody else for ever: the window is let go, with what it had asked for. A thread that is stuck
// is left behind by a stop, and found again if it goes on.
void hammer_late(const World &world, bool stops) {
    StrataPool *pool = make_pool(2, 10);
    std::vector<const void *> blobs;
    for (const Bytes &blob : world.blobs) blobs.push_back(blob.get());
    const StrataLayerExperts layer = {&world.layout, blobs.data(), World::kExperts, 0};
    Window window(world);
    window.has_gate = true;
    StrataMailbox box = window.mailbox();
    StrataDoorbell *service = nullptr;
    require(strata_doorbell_create(pool, &layer, 1, &box, 1, stops ? 60000 : 50, &service) == STRATA_OK, "service");
    std::thread stopper;
    {
        const strata::PoolGuard other(pool);
        require(strata_doorbell_begin(service, 0) == STRATA_OK, "a window");
        if (stops) stopper = std::thread([&] {
            while (__atomic_load_n(&window.door, __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            require(strata_doorbell_stop(service) == STRATA_STOPPED, "a stop without the stuck thread");
            require(strata_doorbell_destroy(service) == STRATA_STOPPED, "nothing of it is freed");
        });
        require(!window.ask(), "no answer");
        if (stops) stopper.join();
    }
    StrataDoorbellState state;
    require(strata_doorbell_state(service, 0, &state) == STRATA_OK && state.is_late != stops, "a look");
    require(stops || (state.failures >= 1 && std::strstr(state.failure, "request 1 ")), "what was asked");
    require(strata_doorbell_destroy(service) == STRATA_OK, "the end of a late service");
    strata_pool_destroy(pool);
}

}  // namespace

int main() {
    const World world;
    for (int32_t isa = STRATA_ISA_SCALAR; isa <= STRATA_ISA_AVX512_VNNI; ++isa) {
        if (strata_force_isa(isa) != STRATA_OK) continue;
        hammer_lives(world, 20);
        hammer_products(10);
    }
    hammer_items(20000);
    hammer_cells(2);
    hammer_packing(20);
    hammer_reads(4);
    hammer_tables(6);
    hammer_callers(world, 100);
    for (int round = 0; round < 4; ++round) {
        hammer_doorbell(world, 40, false);
        hammer_doorbell(world, 1000000, true);
        hammer_late(world, false);
    }
    hammer_gate(world, 200);
    hammer_late(world, true);
    std::puts("hammer: all results right");
    return 0;
}
