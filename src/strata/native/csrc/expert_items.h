// What the items of a job of experts do: gate and up rows into h, then down rows. Knows no thread and no router.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "activations.h"
#include "panel.h"

namespace strata {

constexpr int32_t kBlock = 32;  // values of h that are quantized together

// One expert and its rows; which of the two ways below computes it follows from their number.
struct ExpertTask {
    StrataMatrix gate, up, down;
    const int32_t *slots;  // [count]
    int32_t count;
    int64_t first;        // its first row among all tasks' rows
    Panels *x, *h;        // null for few rows
};

struct ExpertWork {
    const KernelSet &set;
    int32_t hidden, intermediate;
    int32_t item_tiles;  // of an item: one, so that few experts keep all threads busy, or those of a panel call
    std::vector<ExpertTask> tasks;
    std::vector<Row> inputs;   // [all tasks' rows]
    std::vector<Row> middles;  // [all tasks' rows]: h as down takes it
    float *h;                  // [all tasks' rows, intermediate]
    Activations *quantized_h;
    std::unique_ptr<std::atomic<int32_t>[]> halves;  // [tasks, blocks of h]: tiles of h that are computed
    float *out;
    int64_t out_stride;

    int64_t task_count() const { return static_cast<int64_t>(tasks.size()); }
};

// The columns of h that some of `gate`'s tiles give, for all rows of a task; with panels the tiles are a block of h.
// `next` is what this thread will probably read after it.
void gate_up_item(const ExpertWork &work, const ExpertTask &task, const TileRun &tiles, const TileRun &next);
// Rows of some of `down`'s tiles, for all rows of a task whose h is complete.
void down_item(const ExpertWork &work, const ExpertTask &task, const TileRun &run, const TileRun &next);

}  // namespace strata
