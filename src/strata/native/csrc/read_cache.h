// Experts that were read from a model's files, in memory of which only the CPU computes: those used last.
// Knows blobs of one layer and expert each; knows no mailbox. All blobs take the room of the largest one.
#pragma once

#include <atomic>
#include <list>
#include <vector>

#include "expert_files.h"
#include "strata_native.h"

namespace strata {

// Summed up; any thread may look.
struct ReadCounted {
    std::atomic<uint64_t> experts{0}, bytes{0}, ns{0};
};

}  // namespace strata

// One thread at a time, but for the counters.
struct StrataReadCache {
    strata::ExpertFiles files;
    strata::ReadCounted counted;

    // Room for blobs over `memory`, which may be none.
    int32_t lay_out(void *memory, int64_t bytes);
    int64_t blobs() const { return static_cast<int64_t>(slots_.size()); }

    // Fills in the blobs that jobs[first], jobs[first + 1], .. lack, for as many of them as the cache holds together:
    // `count` says how many. They stay until the next call. jobs[i] is of experts[i], all distinct. After an error what
    // was read before it stays, and nothing else; `stopping` ends it between two reads.
    int32_t provide(StrataPool *pool, int32_t layer, const std::vector<int32_t> &experts,
                    std::vector<StrataExpertJob> &jobs, size_t first, const std::atomic<bool> *stopping,
                    size_t &count);

private:
    struct Slot {
        void *blob;
        int64_t owner;  // an expert's number among those of all layers; -1: nobody's
    };
    using Place = std::list<Slot>::iterator;

    void take_slots();  // for the missing ones: those that were used longest ago, nobody's from now on
    int32_t read_missing(StrataPool *pool, int32_t layer, const std::atomic<bool> *stopping);
    int64_t number_of(int32_t layer, int32_t expert) const;

    std::list<Slot> slots_;          // used last in front
    std::vector<Place> place_of_;    // of every expert; the list's end: none
    std::vector<int64_t> first_of_;  // number of each layer's first expert
    // What the running call reads: experts, the slots that they get, and those slots' blobs.
    std::vector<int32_t> missing_;
    std::vector<Place> taken_;
    std::vector<void *> targets_;
};
