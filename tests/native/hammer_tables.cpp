// Windows of two mailboxes ask for rows of tables in a file; stops come while they are read. Every value of a row tells
// which row it is of.
#include "hammer_tables.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "doorbell_service.h"
#include "file_stamp.h"

namespace {

constexpr int kTables = 2, kRows = 3000, kColumns = 40, kHeads = 16, kMostRows = 8, kF32 = 0;

void require(bool truth, const char *what) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s (last error: %s)\n", what, strata_last_error());
    std::exit(1);
}

float value_of(int table, int row) { return static_cast<float>(table * kRows + row); }

// A file in which both tables lie one behind the other.
int make_file() {
    char name[] = "/tmp/strata-hammer-XXXXXX";
    const int file = mkstemp(name);
    unlink(name);
    std::vector<float> values;
    for (int i = 0; i < kTables * kRows * kColumns; ++i) values.push_back(static_cast<float>(i / kColumns));
    const size_t size = values.size() * sizeof(float);
    require(write(file, values.data(), size) == static_cast<ssize_t>(size), "a file");
    return file;
}

// A mailbox and who plays the GPU.
struct Asker {
    int table;
    uint32_t door = 0, done = 0;
    int32_t status = 0, header[3] = {};
    std::vector<int32_t> entries = std::vector<int32_t>(2 * kMostRows * kHeads);
    std::vector<float> out = std::vector<float>(kMostRows * kHeads * kColumns);

    explicit Asker(int of_table) : table(of_table) {}

    StrataMailbox mailbox() {
        return {&door, &done, nullptr, &status, header, entries.data(), nullptr, nullptr, nullptr, out.data(),
                kMostRows, kMostRows * kHeads, kHeads, kColumns};
    }

    // False when the service was stopped.
    bool ask(std::mt19937 &random) {
        const int rows = 1 + static_cast<int>(random() % kMostRows), count = rows * kHeads;
        for (int place = 0; place < count; ++place) {
            entries[static_cast<size_t>(2 * place)] = static_cast<int32_t>(random() % kRows);
            entries[static_cast<size_t>(2 * place + 1)] = place;
        }
        header[0] = table, header[1] = rows, header[2] = count;
        const uint32_t number = door + 1;
        __atomic_store_n(&door, number, __ATOMIC_RELEASE);
        while (strata::read_flag(&done) < number) std::this_thread::yield();
        if (strata::read_flag(&done) == strata::kRaised) return false;
        require(status == STRATA_OK, "an answer");
        for (int i = 0; i < count * kColumns; ++i)
            require(out[static_cast<size_t>(i)] == value_of(table, entries[static_cast<size_t>(i / kColumns * 2)]),
                    "a row's values");
        return true;
    }
};

}  // namespace

void hammer_tables(int rounds) {
    const int file = make_file();
    StrataPool *readers = nullptr;
    require(strata_pool_create(3, 0, 10, &readers) == STRATA_OK, "a pool");
    struct stat now;
    require(fstat(file, &now) == 0, "a look at the file");
    StrataTablePiece pieces[kTables];
    StrataFileTable tables[kTables] = {};
    for (int i = 0; i < kTables; ++i) {
        pieces[i] = {"file", strata::stamp_of(now), int64_t{i} * kRows * kColumns * 4, file, kRows, nullptr};
        tables[i].form.code = STRATA_F32, tables[i].form.sub_block = 32, tables[i].form.rows = 16;
        tables[i].form.columns = kColumns, tables[i].form.post_scale = 1.0f;
        tables[i].type = kF32, tables[i].piece_count = 1, tables[i].pieces = &pieces[i];
    }
    for (int round = 0; round < rounds; ++round) {
        std::vector<Asker> askers{Asker(0), Asker(1)};
        std::vector<StrataMailbox> boxes{askers[0].mailbox(), askers[1].mailbox()};
        StrataDoorbell *service = nullptr;
        require(strata_tables_create(readers, tables, boxes.data(), kTables, 60000, &service) == STRATA_OK, "service");
        std::vector<std::thread> players;
        for (int i = 0; i < kTables; ++i)
            players.emplace_back([&, i] {
                std::mt19937 random(static_cast<unsigned>(round * kTables + i));
                for (bool is_answered = true; is_answered;) {
                    if (strata_doorbell_begin(service, i) != STRATA_OK) return;
                    for (int asked = 0; is_answered && asked < 20; ++asked)
                        is_answered = askers[static_cast<size_t>(i)].ask(random);
                    strata_doorbell_end(service, i);
                }
            });
        std::this_thread::sleep_for(std::chrono::milliseconds(round % 2 ? 100 : 3));
        require(strata_doorbell_stop(service) == STRATA_OK, "a stop");
        for (std::thread &player : players) player.join();
        uint64_t waited = 0;
        require(strata_tables_waited(service, &waited) == STRATA_OK, "counters");
        require(strata_doorbell_destroy(service) == STRATA_OK, "an end");
    }
    strata_pool_destroy(readers);
    close(file);
}
