// Who has room and who gives way; what is read, and how, is in expert_files.cpp.
#include "read_cache.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "errors.h"
#include "matrix.h"

using namespace strata;

namespace {

using Clock = std::chrono::steady_clock;

uint64_t ns_since(Clock::time_point begin) {
    return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
}

}  // namespace

int32_t StrataReadCache::lay_out(void *memory, int64_t bytes) {
    int64_t largest = 0, experts = 0;
    for (const FileLayer &layer : files.layers()) {
        largest = std::max(largest, layer.layout.blob_bytes);
        first_of_.push_back(experts);
        experts += layer.experts;
    }
    if (bytes > 0 && (!memory || reinterpret_cast<uintptr_t>(memory) % 64))
        return fail(STRATA_INVALID, "the memory for experts that are read does not begin at a multiple of 64 bytes");
    for (int64_t at = 0; at + largest <= bytes; at += largest) slots_.push_back({static_cast<char *>(memory) + at, -1});
    place_of_.assign(static_cast<size_t>(experts), slots_.end());
    return STRATA_OK;
}

int64_t StrataReadCache::number_of(int32_t layer, int32_t expert) const {
    return first_of_[static_cast<size_t>(layer)] + expert;
}

int32_t StrataReadCache::provide(StrataPool *pool, int32_t layer, const std::vector<int32_t> &experts,
                                 std::vector<StrataExpertJob> &jobs, size_t first, const std::atomic<bool> *stopping,
                                 size_t &count) {
    missing_.clear(), taken_.clear(), targets_.clear();
    // Whoever is here moves to the front: of those at the end, as many as are missing, none belongs to this request.
    int64_t used = 0;
    size_t end = first;
    for (; end < jobs.size(); ++end) {
        if (jobs[end].blob) continue;
        if (used == blobs()) break;
        ++used;
        const Place place = place_of_[static_cast<size_t>(number_of(layer, experts[end]))];
        if (place == slots_.end()) {
            missing_.push_back(experts[end]);
            continue;
        }
        slots_.splice(slots_.begin(), slots_, place);
        jobs[end].blob = place->blob;
    }
    if (end == first && first < jobs.size())
        return fail(STRATA_INVALID, "no expert that is read from the model's files has room in memory");
    count = end - first;
    if (missing_.empty()) return STRATA_OK;
    take_slots();
    if (const int32_t code = read_missing(pool, layer, stopping)) return code;
    size_t next = 0;
    for (size_t i = first; i < end; ++i)
        if (!jobs[i].blob) jobs[i].blob = targets_[next++];
    return STRATA_OK;
}

void StrataReadCache::take_slots() {
    for (size_t i = 0; i < missing_.size(); ++i) {
        const Place place = std::prev(slots_.end());
        if (place->owner >= 0) place_of_[static_cast<size_t>(place->owner)] = slots_.end();
        place->owner = -1;
        slots_.splice(slots_.begin(), slots_, place);
        taken_.push_back(place);
        targets_.push_back(place->blob);
    }
}

int32_t StrataReadCache::read_missing(StrataPool *pool, int32_t layer, const std::atomic<bool> *stopping) {
    Clock::time_point begin = Clock::now();
    const auto all = static_cast<int32_t>(missing_.size());
    const int32_t at_once = files.at_once(layer);
    files.read_ahead(layer, missing_.data(), all);
    for (int32_t done = 0; done < all; done += at_once) {
        const int32_t some = std::min(at_once, all - done);
        const auto first = static_cast<size_t>(done);
        const int32_t code = stopping && stopping->load()
                                 ? fail(STRATA_STOPPED, "the service was stopped while experts were read")
                                 : files.read(pool, layer, &missing_[first], &targets_[first], some);
        if (code) {  // what is left is empty: it is taken first the next time
            for (size_t i = first; i < taken_.size(); ++i) slots_.splice(slots_.end(), slots_, taken_[i]);
            return code;
        }
        for (size_t i = first; i < first + static_cast<size_t>(some); ++i) {
            taken_[i]->owner = number_of(layer, missing_[i]);
            place_of_[static_cast<size_t>(taken_[i]->owner)] = taken_[i];
        }
        counted.experts += static_cast<uint64_t>(some);
        counted.bytes += static_cast<uint64_t>(some * files.layers()[static_cast<size_t>(layer)].expert_bytes);
        counted.ns += ns_since(begin);
        begin = Clock::now();
    }
    return STRATA_OK;
}

int32_t strata_read_cache_create(const StrataModelFile *files, int32_t file_count, const StrataFileLayer *layers,
                                 int32_t layer_count, void *memory, int64_t bytes, StrataReadCache **cache) {
    if (!files || file_count < 1 || !layers || layer_count < 1 || bytes < 0 || !cache)
        return fail(STRATA_INVALID, "a cache of %d layers in %d files", layer_count, file_count);
    *cache = nullptr;
    return guarded([&]() -> int32_t {
        auto made = std::make_unique<StrataReadCache>();
        if (const int32_t code = made->files.open(files, file_count, layers, layer_count)) return code;
        if (const int32_t code = made->lay_out(memory, bytes)) return code;
        *cache = made.release();
        return STRATA_OK;
    });
}

int32_t strata_read_cache_fill(StrataReadCache *cache, StrataPool *pool, int32_t layer, const int32_t *experts,
                               void *const *blobs, int32_t count) {
    if (!cache || !pool || count < 0 || (count > 0 && !(experts && blobs)))
        return fail(STRATA_INVALID, "no cache or no pool, or %d experts", count);
    const std::vector<FileLayer> &layers = cache->files.layers();
    if (layer < 0 || layer >= static_cast<int32_t>(layers.size()))
        return fail(STRATA_INVALID, "no layer %d is in the files", layer);
    for (int32_t i = 0; i < count; ++i)
        if (experts[i] < 0 || experts[i] >= layers[static_cast<size_t>(layer)].experts || !blobs[i])
            return fail(STRATA_INVALID, "layer %d has no expert %d, or it has no room", layer, experts[i]);
    return guarded([&]() -> int32_t {
        cache->files.read_ahead(layer, experts, count);
        return cache->files.read(pool, layer, experts, blobs, count);
    });
}

int32_t strata_read_cache_counters(const StrataReadCache *cache, StrataReadCounters *counters) {
    if (!cache || !counters) return fail(STRATA_INVALID, "no cache, or no place for its counters");
    const ReadCounted &counted = cache->counted;
    *counters = {counted.experts.load(), counted.bytes.load(), counted.ns.load()};
    return STRATA_OK;
}

void strata_read_cache_destroy(StrataReadCache *cache) { delete cache; }
