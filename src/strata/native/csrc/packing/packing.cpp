// Matrices as a GGUF file holds them, packed by all threads of a pool: pieces of some tiles, read and packed in one go.
// Knows where bytes come from and go; knows no format's bytes.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "errors.h"
#include "packing/tiles.h"
#include "pool.h"

namespace strata::packing {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;  // of the file: a piece is still in the second cache when it is packed

// A run of equal matrices, cut into pieces of whole tiles.
struct Run {
    StrataPacking *asked;
    const PackFormat *format;
    int64_t row_bytes, tiles, piece_tiles, pieces, first_item;
    TileSizes sizes;

    int64_t items() const { return pieces * asked->count; }
    int64_t piece_bytes() const { return piece_tiles * kTileRows * row_bytes; }
};

// The lowest matrix of a run that was refused, the last failure of reading.
struct Outcome {
    std::atomic<int32_t> refused{INT32_MAX};
    std::atomic<int32_t> read_error{0};

    void refuse(int32_t matrix) {
        int32_t lowest = refused.load();
        while (matrix < lowest && !refused.compare_exchange_weak(lowest, matrix)) {
        }
    }
};

// All of it, or the error's number (ENODATA where the file ends before).
int read_all(int file, uint8_t *to, int64_t size, int64_t from) {
    while (size > 0) {
        const ssize_t found = pread(file, to, static_cast<size_t>(size), from);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) return found < 0 ? errno : ENODATA;
        to += found, from += found, size -= found;
    }
    return 0;
}

uint8_t *at(void *array, int64_t offset) { return array ? static_cast<uint8_t *>(array) + offset : nullptr; }

void pack_piece(const Run &run, Outcome &outcome, int64_t item, uint8_t *scratch) {
    const StrataPacking &asked = *run.asked;
    const auto matrix = static_cast<int32_t>(item / run.pieces);
    const int64_t first = item % run.pieces * run.piece_tiles, end = std::min(first + run.piece_tiles, run.tiles);
    const int64_t rows = std::min<int64_t>(end * kTileRows, asked.rows) - first * kTileRows;
    const int64_t place = asked.place + matrix * asked.place_stride + first * kTileRows * run.row_bytes;
    const uint8_t *bytes = scratch;
    if (asked.file < 0) {
        bytes = reinterpret_cast<const uint8_t *>(place);
    } else if (const int error = read_all(asked.file, scratch, rows * run.row_bytes, place)) {
        outcome.read_error.store(error);
        return;
    }
    bool is_good = true;
    const int64_t base = matrix * asked.array_stride;
    for (int64_t tile = first; tile < end; ++tile) {
        const TilePlace out = {at(asked.codes, base + tile * run.sizes.codes),
                               at(asked.scales, base + tile * run.sizes.scales),
                               at(asked.super_scales, base + tile * run.sizes.super_scales),
                               at(asked.mins, base + tile * run.sizes.mins),
                               at(asked.super_mins, base + tile * run.sizes.super_mins)};
        const auto tile_rows = static_cast<int>(std::min<int64_t>(kTileRows, asked.rows - tile * kTileRows));
        const int64_t from = (tile - first) * kTileRows * run.row_bytes;
        is_good &= run.format->pack(bytes + from, run.row_bytes, tile_rows, asked.columns, out);
    }
    if (!is_good) outcome.refuse(matrix);
}

int32_t check(const StrataPacking &asked, const PackFormat *format) {
    if (!format) return fail(STRATA_UNSUPPORTED, "blocks of ggml's type %d are not packed here", asked.type);
    if (asked.rows < 1 || asked.columns < 1 || asked.count < 0 || asked.columns % format->block_weights)
        return fail(STRATA_INVALID, "%d matrices of %d x %d; type %d has blocks of %d", asked.count, asked.rows,
                    asked.columns, asked.type, format->block_weights);
    const TileSizes sizes = format->tile_sizes(asked.columns);
    const auto lacks = [](int64_t size, const void *array) { return size > 0 && !array; };
    if (lacks(sizes.codes, asked.codes) || lacks(sizes.scales, asked.scales) ||
        lacks(sizes.super_scales, asked.super_scales) || lacks(sizes.mins, asked.mins) ||
        lacks(sizes.super_mins, asked.super_mins))
        return fail(STRATA_INVALID, "an array of a matrix of type %d has no place", asked.type);
    for (const void *array : {asked.codes, asked.scales, asked.super_scales, asked.mins, asked.super_mins})
        if (reinterpret_cast<uintptr_t>(array) % 64 || asked.array_stride % 64)
            return fail(STRATA_INVALID, "an array of a matrix does not begin at a multiple of 64 bytes");
    if (asked.file < 0 && asked.place == 0) return fail(STRATA_INVALID, "blocks at a null pointer");
    return STRATA_OK;
}

Run make_run(StrataPacking *asked, const PackFormat *format, int64_t first_item) {
    const int64_t row_bytes = format->row_bytes(asked->columns);
    const int64_t tiles = (int64_t{asked->rows} + kTileRows - 1) / kTileRows;
    const int64_t piece_tiles = std::min(tiles, std::max<int64_t>(1, kPieceBytes / (row_bytes * kTileRows)));
    return {asked, format,     row_bytes,
            tiles, piece_tiles, (tiles + piece_tiles - 1) / piece_tiles,
            first_item, format->tile_sizes(asked->columns)};
}

int32_t pack_runs(StrataPool *pool, StrataPacking *jobs, int32_t job_count) {
    std::vector<Run> runs;
    int64_t items = 0, largest = 0;
    for (int32_t i = 0; i < job_count; ++i) {
        const PackFormat *format = find_format(jobs[i].type);
        if (const int32_t wrong = check(jobs[i], format)) return wrong;
        runs.push_back(make_run(&jobs[i], format, items));
        items += runs.back().items();
        if (jobs[i].file >= 0) largest = std::max(largest, (runs.back().piece_bytes() + 63) / 64 * 64);
    }
    std::vector<Outcome> outcomes(runs.size());
    PoolGuard guard(pool);
    auto *scratch = static_cast<uint8_t *>(guard.scratch(static_cast<size_t>(largest * thread_count(pool)) + 64));
    for_items(pool, items, [&](int64_t item, int thread) {
        const auto after = std::upper_bound(runs.begin(), runs.end(), item,
                                            [](int64_t number, const Run &run) { return number < run.first_item; });
        const auto index = static_cast<size_t>(after - runs.begin() - 1);
        pack_piece(runs[index], outcomes[index], item - runs[index].first_item, scratch + largest * thread);
    });
    for (size_t i = 0; i < runs.size(); ++i) {
        const int32_t lowest = outcomes[i].refused.load();
        jobs[i].refused = lowest == INT32_MAX ? -1 : lowest;
        jobs[i].read_error = outcomes[i].read_error.load();
    }
    return STRATA_OK;
}

}  // namespace
}  // namespace strata::packing

int32_t strata_packs(int32_t type) { return strata::packing::find_format(type) != nullptr; }

int32_t strata_pack(StrataPool *pool, StrataPacking *jobs, int32_t job_count) {
    using namespace strata;
    if (!pool || job_count < 0 || (job_count > 0 && !jobs)) return fail(STRATA_INVALID, "no pool or no jobs");
    return guarded([&] { return packing::pack_runs(pool, jobs, job_count); });
}
