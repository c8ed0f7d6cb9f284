// An expert's items, each in two ways: few rows go through tiles as they lie, many rows as panels through unpacked
// tiles. Both give the same bits.
#include "expert_items.h"

#include <algorithm>
#include <cstring>

#include "panel_products.h"

namespace strata {
namespace {

// The silu of gate and up, into columns first .. of row `row` among all tasks' rows, and what down wants of it.
void put_h(const ExpertWork &work, const ExpertTask &task, int32_t first, int64_t row, const float *gate,
           const float *up) {
    float *h = work.h + row * work.intermediate + first;
    work.set.silu_mul(gate, up, h, std::min(kRun, work.intermediate - first));
    if (is_packed(task.down.code)) work.quantized_h->take_block(work.set, row, first / kRun, h);
}

// One row: every tile is read as a stream.
void gate_up_row(const ExpertWork &work, const ExpertTask &task, int32_t run, const TileRun &next) {
    alignas(64) float gate[kRun], up[kRun];
    const Row &row = work.inputs[static_cast<size_t>(task.first)];
    const TileRun of_gate = gate_run(task, run), of_up = {&task.up, of_gate.first, of_gate.end};
    run_stream(work.set, of_gate, of_up, row, gate);
    run_stream(work.set, of_up, next, row, up);
    put_h(work, task, run * kRun, task.first, gate, up);
}

// Up to kMostRows rows of a task from row `from` on.
void gate_up_rows(const ExpertWork &work, const ExpertTask &task, int32_t first, int32_t from, int32_t count) {
    alignas(64) float gate[kMostRows * kRun], up[kMostRows * kRun], out[kMostRows * kTileRows];
    const Row *rows = work.inputs.data() + task.first + from;
    const auto multiply = [&](const StrataMatrix &m, int32_t row, float *to) {
        run_tile(work.set, m, row / kTileRows, rows, count, out);
        for (int32_t i = 0; i < count; ++i) std::copy_n(out + i * kTileRows, kTileRows, to + i * kRun + row - first);
    };
    for (int32_t row = first; row < std::min(first + kRun, work.intermediate); row += kTileRows)
        multiply(task.gate, row, gate), multiply(task.up, row, up);
    for (int32_t i = 0; i < count; ++i)
        put_h(work, task, first, task.first + from + i, gate + i * kRun, up + i * kRun);
}

void take_h(const ExpertWork &work, const ExpertTask &task, int32_t first, int64_t row, const float *h) {
    Panel &panel = task.h->of(task.down.code);
    if (!is_packed(task.down.code))
        return panel.take_values(row, first, std::min(kRun, work.intermediate - first), h);
    int8_t q[kRun];
    float d;
    int32_t sums[2];
    work.set.quantize(h, kRun, q, &d, sums);
    panel.take_block(row, first / kRun, q, d, sums);
}

// Up to kPanelRows rows of a task from row `from` on, the first one of a panel's groups.
void gate_up_panel(const ExpertWork &work, const ExpertTask &task, int32_t first, int32_t from, int32_t count) {
    alignas(64) float gate[kPanelRows * kRun], up[kPanelRows * kRun], h[kPanelRows * kRun];
    const int32_t width = work.set.form.tiles * kTileRows, end = std::min(first + kRun, work.intermediate);
    for (int32_t row = first; row < end; row += width) {
        run_panel(work.set, task.gate, row / kTileRows, task.x->of(task.gate.code).from(from), count, gate);
        run_panel(work.set, task.up, row / kTileRows, task.x->of(task.up.code).from(from), count, up);
        work.set.silu_mul(gate, up, gate, int64_t{count} * width);
        for (int32_t i = 0; i < count; ++i)
            std::copy_n(gate + i * width, width, h + i * kRun + row - first);
    }
    for (int32_t i = 0; i < count; ++i) take_h(work, task, first, from + i, h + i * kRun);
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

TileRun gate_run(const ExpertTask &task, int32_t run) {
    const int64_t first = int64_t{run} * kRun / kTileRows;
    return {&task.gate, first, std::min(first + kRun / kTileRows, tiles_of(task.gate))};
}

void gate_up_item(const ExpertWork &work, const ExpertTask &task, int32_t run, const TileRun &next) {
    if (task.count == 1) return gate_up_row(work, task, run, next);
    const int32_t step = task.x ? kPanelRows : kMostRows;
    for (int32_t from = 0; from < task.count; from += step)
        (task.x ? gate_up_panel : gate_up_rows)(work, task, run * kRun, from, std::min(step, task.count - from));
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
