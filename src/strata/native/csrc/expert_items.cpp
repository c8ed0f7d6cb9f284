// An expert's items, each in two ways: few rows go through tiles as they lie, many rows as panels through unpacked
// tiles. Both give the same bits.
#include "expert_items.h"

#include <algorithm>
#include <cstring>

#include "panel_products.h"

namespace strata {
namespace {

// The silu of gate and up, into columns first .. end - 1 of row `row` among all tasks' rows.
void put_h(const ExpertWork &work, int32_t first, int32_t end, int64_t row, const float *gate, const float *up) {
    work.set.silu_mul(gate, up, work.h + row * work.intermediate + first, end - first);
}

// What down wants of h: whoever computes the last tile of a block quantizes it.
void finish_tiles(const ExpertWork &work, const ExpertTask &task, const TileRun &tiles) {
    constexpr int32_t kTiles = kBlock / kTileRows;
    if (!is_packed(task.down.code)) return;
    std::atomic<int32_t> *done = work.halves.get() + (&task - work.tasks.data()) * (work.intermediate / kBlock);
    for (int64_t tile = tiles.first, end; tile < tiles.end; tile = end) {
        const auto block = static_cast<int32_t>(tile / kTiles);
        end = std::min<int64_t>(tiles.end, (block + 1) * kTiles);
        const auto more = static_cast<int32_t>(end - tile);
        if (more < kTiles && done[block].fetch_add(more, std::memory_order_acq_rel) + more < kTiles) continue;
        for (int64_t row = task.first; row < task.first + task.count; ++row)
            work.quantized_h->take_block(work.set, row, block, work.h + row * work.intermediate + block * kBlock);
    }
}

// One row: every tile is read as a stream.
void gate_up_row(const ExpertWork &work, const ExpertTask &task, const TileRun &tiles, const TileRun &next) {
    alignas(64) float gate[kBlock], up[kBlock];
    const Row &row = work.inputs[static_cast<size_t>(task.first)];
    const TileRun of_up = {&task.up, tiles.first, tiles.end};
    run_stream(work.set, tiles, of_up, row, gate);
    run_stream(work.set, of_up, next, row, up);
    const auto first = static_cast<int32_t>(tiles.first) * kTileRows, end = static_cast<int32_t>(tiles.end) * kTileRows;
    put_h(work, first, std::min(end, work.intermediate), task.first, gate, up);
}

// Up to kMostRows rows of a task from row `from` on.
void gate_up_rows(const ExpertWork &work, const ExpertTask &task, const TileRun &tiles, int32_t from, int32_t count) {
    alignas(64) float gate[kMostRows * kTileRows], up[kMostRows * kTileRows];
    const Row *rows = work.inputs.data() + task.first + from;
    for (int64_t tile = tiles.first; tile < tiles.end; ++tile) {
        run_tile(work.set, task.gate, tile, rows, count, gate);
        run_tile(work.set, task.up, tile, rows, count, up);
        const int32_t first = static_cast<int32_t>(tile) * kTileRows;
        const int32_t end = std::min(first + kTileRows, work.intermediate);
        for (int32_t i = 0; i < count; ++i)
            put_h(work, first, end, task.first + from + i, gate + i * kTileRows, up + i * kTileRows);
    }
}

void take_h(const ExpertWork &work, const ExpertTask &task, int32_t first, int64_t row, const float *h) {
    Panel &panel = task.h->of(task.down.code);
    if (!is_packed(task.down.code))
        return panel.take_values(row, first, std::min(kBlock, work.intermediate - first), h);
    int8_t q[kBlock];
    float d;
    int32_t sums[2];
    work.set.quantize(h, kBlock, q, &d, sums);
    panel.take_block(row, first / kBlock, q, d, sums);
}

// Up to kPanelRows rows of a task from row `from` on, the first one of a panel's groups. The item is a block of h.
void gate_up_panel(const ExpertWork &work, const ExpertTask &task, int32_t first, int32_t from, int32_t count) {
    alignas(64) float gate[kPanelRows * kBlock], up[kPanelRows * kBlock], h[kPanelRows * kBlock];
    const int32_t width = work.set.form.tiles * kTileRows, end = std::min(first + kBlock, work.intermediate);
    for (int32_t row = first; row < end; row += width) {
        run_panel(work.set, task.gate, row / kTileRows, task.x->of(task.gate.code).from(from), count, gate);
        run_panel(work.set, task.up, row / kTileRows, task.x->of(task.up.code).from(from), count, up);
        work.set.silu_mul(gate, up, gate, int64_t{count} * width);
        for (int32_t i = 0; i < count; ++i)
            std::copy_n(gate + i * width, width, h + i * kBlock + row - first);
    }
    for (int32_t i = 0; i < count; ++i) take_h(work, task, first, from + i, h + i * kBlock);
}

// out[i][width] of `count` rows from row `from` on, into their slots.
void put_rows(const ExpertWork &work, const ExpertTask &task, int64_t tile, int32_t width, int32_t from, int32_t count,
              const float *out) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(width, work.hidden - tile * kTileRows)) * sizeof(float);
    for (int32_t i = 0; i < count; ++i)
        std::memcpy(work.out + task.slots[from + i] * work.out_stride + tile * kTileRows, out + i * width, bytes);
}

void down_panels(const ExpertWork &work, const ExpertTask &task, int64_t first, int64_t end) {
    alignas(64) float out[kPanelRows * kMostPanelTiles * kTileRows];
    const int32_t tiles = work.set.form.tiles;
    for (int32_t from = 0; from < task.count; from += kPanelRows) {
        const int32_t count = std::min(kPanelRows, task.count - from);
        for (int64_t tile = first; tile < end; tile += tiles) {
            run_panel(work.set, task.down, tile, task.h->of(task.down.code).from(from), count, out);
            put_rows(work, task, tile, tiles * kTileRows, from, count, out);
        }
    }
}

}  // namespace

void gate_up_item(const ExpertWork &work, const ExpertTask &task, const TileRun &tiles, const TileRun &next) {
    if (task.x) {
        const auto first = static_cast<int32_t>(tiles.first) * kTileRows;
        for (int32_t from = 0; from < task.count; from += kPanelRows)
            gate_up_panel(work, task, first, from, std::min(kPanelRows, task.count - from));
        return;
    }
    if (task.count == 1) {
        gate_up_row(work, task, tiles, next);
    } else {
        for (int32_t from = 0; from < task.count; from += kMostRows)
            gate_up_rows(work, task, tiles, from, std::min(kMostRows, task.count - from));
    }
    finish_tiles(work, task, tiles);
}

void down_item(const ExpertWork &work, const ExpertTask &task, const TileRun &run, const TileRun &next) {
    if (task.h) return down_panels(work, task, run.first, run.end);
    alignas(64) float out[kMostRows * kTileRows];
    if (task.count == 1) {
        run_stream(work.set, run, next, work.middles[static_cast<size_t>(task.first)], out);
        return put_rows(work, task, run.first, static_cast<int32_t>(run.end - run.first) * kTileRows, 0, 1, out);
    }
    for (int64_t tile = run.first; tile < run.end; ++tile) {
        for (int32_t from = 0; from < task.count; from += kMostRows) {
            const int32_t count = std::min(kMostRows, task.count - from);
            run_tile(work.set, task.down, tile, work.middles.data() + task.first + from, count, out);
            put_rows(work, task, tile, kTileRows, from, count, out);
        }
    }
}

}  // namespace strata
