// What the items of a job of experts do: gate and up rows into h, then down rows. Knows no thread and no router.
#pragma once

#include <vector>

#include "activations.h"
#include "panel.h"

namespace strata {

constexpr int32_t kRun = 32;  // gate/up rows of an item: one block of h, which the item itself quantizes

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
    std::vector<ExpertTask> tasks;
    std::vector<Row> inputs;   // [all tasks' rows]
    std::vector<Row> middles;  // [all tasks' rows]: h as down takes it
    float *h;                  // [all tasks' rows, intermediate]
    Activations *quantized_h;
    float *out;
    int64_t out_stride;
};

// The gate and up tiles of item `run` of a task.
TileRun gate_run(const ExpertTask &task, int32_t run);

// h of columns run * kRun .. for all rows of a task; `next` is what this thread will probably read after it.
void gate_up_item(const ExpertWork &work, const ExpertTask &task, int32_t run, const TileRun &next);
// Rows of some of `down`'s tiles, for all rows of a task whose h is complete.
void down_item(const ExpertWork &work, const ExpertTask &task, const TileRun &run, const TileRun &next);

}  // namespace strata
