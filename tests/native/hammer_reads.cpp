// Windows of several mailboxes ask for experts that lie in a file, out of a cache that holds three of eight; stops come
// while they are read. Answers are compared with those of experts in memory.
#include "hammer_reads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "doorbell_service.h"
#include "file_stamp.h"
#include "pool.h"
#include "read_cache.h"

namespace {

constexpr int kExperts = 8, kHidden = 64, kWidth = 64, kRanks = 4, kHeld = 3;
constexpr int kQ8_0 = 8, kRowBytes = kHidden / 32 * 34;

void require(bool truth, const char *what) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s (last error: %s)\n", what, strata_last_error());
    std::exit(1);
}

StrataMatrix form() {
    StrataMatrix m{};
    m.code = STRATA_CODE8, m.scale_kind = STRATA_SCALE_F16, m.sub_block = 32, m.rows = kWidth, m.columns = kHidden;
    m.post_scale = 1.0f;
    return m;
}

// A file of random codes, its experts in memory too, and a cache over both.
struct Filed {
    StrataExpertLayout layout{};
    StrataReadCache *cache = nullptr;
    std::vector<char> room, blobs;
    int descriptor;

    explicit Filed(StrataPool *pool) {
        layout.gate = layout.up = layout.down = form();
        require(strata_expert_layout(&layout) == STRATA_OK, "layout");
        char name[] = "/tmp/strata-hammer-XXXXXX";
        descriptor = mkstemp(name);
        unlink(name);
        std::mt19937 random(3);
        std::vector<uint8_t> bytes(static_cast<size_t>(3 * kExperts * kWidth * kRowBytes));
        for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(random());
        for (size_t block = 0; block < bytes.size(); block += 34) bytes[block] = 0x00, bytes[block + 1] = 0x24;
        require(write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "a file");
        open_cache();
        blobs.resize(static_cast<size_t>(kExperts * layout.blob_bytes) + 64);
        std::vector<int32_t> experts;
        std::vector<void *> targets;
        for (int e = 0; e < kExperts; ++e) experts.push_back(e), targets.push_back(blob(e));
        require(strata_read_cache_fill(cache, pool, 0, experts.data(), targets.data(), kExperts) == STRATA_OK, "a fill");
    }

    ~Filed() {
        strata_read_cache_destroy(cache);
        close(descriptor);
    }

    char *blob(int expert) { return aligned(blobs) + expert * layout.blob_bytes; }

    std::vector<float> wanted(StrataPool *pool, int first, const std::vector<float> &x) {
        const int32_t row = 0;
        std::vector<int32_t> slots;
        for (int rank = 0; rank < kRanks; ++rank) slots.push_back(rank);
        std::vector<StrataExpertJob> jobs;
        for (int rank = 0; rank < kRanks; ++rank)
            jobs.push_back({blob((first + rank) % kExperts), &row, &slots[static_cast<size_t>(rank)], 1, 0});
        std::vector<float> out(kRanks * kHidden);
        require(strata_experts(pool, &layout, jobs.data(), kRanks, x.data(), kHidden, 1, out.data(), kHidden) ==
                    STRATA_OK, "experts");
        return out;
    }

private:
    static char *aligned(std::vector<char> &memory) {
        return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    }

    void open_cache() {
        struct stat now;
        require(fstat(descriptor, &now) == 0, "a look at the file");
        const StrataModelFile file = {"file", descriptor, 0, strata::stamp_of(now)};
        const std::vector<float> factors(3 * kExperts, 1.0f);
        const int64_t matrix = kWidth * kRowBytes, part = kExperts * matrix;
        const StrataFileLayer layer = {&layout, factors.data(),
                                       {{kQ8_0, 0, 0, matrix}, {kQ8_0, 0, part, matrix}, {kQ8_0, 0, 2 * part, matrix}},
                                       kExperts, 0};
        room.resize(static_cast<size_t>(kHeld * layout.blob_bytes) + 64);
        require(strata_read_cache_create(&file, 1, &layer, 1, aligned(room), kHeld * layout.blob_bytes, &cache) ==
                    STRATA_OK, "a cache");
    }
};

// A mailbox and who plays the GPU.
struct Asker {
    uint32_t door = 0, done = 0;
    int32_t status = 0, header[3] = {0, 1, kRanks};
    std::vector<int32_t> entries = std::vector<int32_t>(2 * kRanks);
    std::vector<float> x = std::vector<float>(kHidden, 0.25f), out = std::vector<float>(kRanks * kHidden);

    StrataMailbox mailbox() {
        return {&door, &done, nullptr, &status, header, entries.data(), x.data(), nullptr, nullptr, out.data(),
                1, kRanks, kRanks, kHidden};
    }

    // False when the service was stopped.
    bool ask(int first) {
        for (int rank = 0; rank < kRanks; ++rank) entries[2 * rank] = (first + rank) % kExperts, entries[2 * rank + 1] = rank;
        const uint32_t number = door + 1;
        __atomic_store_n(&door, number, __ATOMIC_RELEASE);
        uint32_t found;
        while ((found = __atomic_load_n(&done, __ATOMIC_ACQUIRE)) < number) std::this_thread::yield();
        return found != strata::kRaised;
    }
};

StrataDoorbell *make_service(StrataPool *pool, Filed &filed, std::vector<Asker> &askers, int32_t limit_ms) {
    const std::vector<const void *> nowhere(kExperts, nullptr);
    const StrataLayerExperts layer = {&filed.layout, nowhere.data(), kExperts, 0};
    std::vector<StrataMailbox> boxes;
    for (Asker &asker : askers) boxes.push_back(asker.mailbox());
    StrataDoorbell *service = nullptr;
    require(strata_doorbell_create(pool, &layer, 1, boxes.data(), static_cast<int32_t>(boxes.size()), limit_ms,
                                   &service) == STRATA_OK, "service");
    require(strata_doorbell_read(service, filed.cache) == STRATA_OK, "reading");
    return service;
}

void answer_windows(int rounds, bool stops_early) {
    StrataPool *pool = nullptr;
    require(strata_pool_create(3, 0, 10, &pool) == STRATA_OK, "pool");
    {
        Filed filed(pool);
        std::vector<Asker> askers(3);
        std::vector<std::vector<float>> wanted;
        for (int first = 0; first < kExperts; ++first) wanted.push_back(filed.wanted(pool, first, askers[0].x));
        StrataDoorbell *service = make_service(pool, filed, askers, 60000);
        std::atomic<bool> is_over{false};
        std::thread looker([&] {
            StrataReadCounters counters;
            while (!is_over) require(strata_read_cache_counters(filed.cache, &counters) == STRATA_OK, "a look");
        });
        std::vector<std::thread> players;
        for (int w = 0; w < 3; ++w)
            players.emplace_back([&, w] {
                Asker &asker = askers[static_cast<size_t>(w)];
                for (int round = 0; round < rounds; ++round) {
                    if (strata_doorbell_begin(service, w) != STRATA_OK) break;
                    const int first = (3 * w + round) % kExperts;
                    const bool answered = asker.ask(first);
                    if (answered) require(asker.status == 0 && asker.out == wanted[static_cast<size_t>(first)], "rows");
                    strata_doorbell_end(service, w);
                    if (!answered) break;
                }
            });
        if (stops_early) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            strata_doorbell_stop(service);
        }
        for (std::thread &player : players) player.join();
        is_over = true;
        looker.join();
        require(strata_doorbell_destroy(service) == STRATA_OK, "the end of a service");
    }
    strata_pool_destroy(pool);
}

// Who waits longer than the limit is let go, but not as long as experts arrive.
void wait_for_arrivals() {
    StrataPool *pool = nullptr;
    require(strata_pool_create(2, 0, 10, &pool) == STRATA_OK, "pool");
    {
        Filed filed(pool);
        std::vector<Asker> askers(1);
        StrataDoorbell *service = make_service(pool, filed, askers, 400);
        require(strata_doorbell_begin(service, 0) == STRATA_OK, "a window");
        std::thread player;
        {
            const strata::PoolGuard other(pool);
            player = std::thread([&] { require(!askers[0].ask(0), "no answer"); });
            for (int arrival = 0; arrival < 100; ++arrival) {  // two seconds and a half
                std::this_thread::sleep_for(std::chrono::milliseconds(25));
                ++filed.cache->counted.experts;
            }
            require(__atomic_load_n(&askers[0].done, __ATOMIC_ACQUIRE) == 0, "nobody is late as long as experts arrive");
            player.join();
        }
        StrataDoorbellState state;
        require(strata_doorbell_state(service, 0, &state) == STRATA_OK && state.is_late, "late behind the last arrival");
        require(strata_doorbell_destroy(service) == STRATA_OK, "the end of a late service");
    }
    strata_pool_destroy(pool);
}

}  // namespace

void hammer_reads(int rounds) {
    for (int round = 0; round < rounds; ++round) {
        answer_windows(200, false);
        answer_windows(1000000, true);
    }
    wait_for_arrivals();
}
