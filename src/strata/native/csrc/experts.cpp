// Experts over rows: gate and up in runs of 32 rows, then down, all experts in one job of numbered items, so that every
// byte is read once and a few experts keep all threads busy. Knows no router; router weights are applied by combine.
#include "experts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "activations.h"
#include "errors.h"
#include "matrix.h"
#include "pool.h"

namespace strata {
namespace {

constexpr int32_t kRun = 32;  // gate/up rows of an item: one block of h, which the item itself quantizes
constexpr int64_t kMostDownTiles = 8;

StrataMatrix matrix_in(const StrataExpertLayout &layout, int which, const char *blob) {
    const StrataMatrix *const forms[] = {&layout.gate, &layout.up, &layout.down};
    StrataMatrix m = *forms[which];
    const int64_t *offsets = layout.offsets[which];
    const auto at = [&](int array) -> const void * { return offsets[array] < 0 ? nullptr : blob + offsets[array]; };
    m.codes = at(0), m.scales = at(1), m.super_scales = at(2), m.mins = at(3), m.super_mins = at(4);
    std::memcpy(&m.post_scale, blob + layout.post_scales_offset + which * 4, sizeof m.post_scale);
    return m;
}

// One expert of the job.
struct Task {
    StrataMatrix gate, up, down;
    const int32_t *slots;
    int32_t count;
    int64_t first;  // its first row among all tasks' rows
};

struct Job {
    const KernelSet &set;
    int32_t hidden, intermediate;
    std::vector<Task> tasks;
    std::vector<Row> inputs;   // [all tasks' rows]
    std::vector<Row> middles;  // [all tasks' rows]: h as down takes it
    float *h;                  // [all tasks' rows, intermediate]
    Activations *quantized_h;
    bool down_is_packed;
    std::unique_ptr<std::atomic<int32_t>[]> runs_done;  // of every task
    float *out;
    int64_t out_stride;
};

// h of columns first .. first + 31 for up to kMostRows rows of a task.
void gate_up_panel(const Job &job, const Task &task, int32_t first, int32_t panel, int32_t count) {
    alignas(64) float gate[kMostRows * kTileRows], up[kMostRows * kTileRows];
    const Row *rows = job.inputs.data() + task.first + panel;
    const int32_t end = std::min(first + kRun, job.intermediate);
    for (int32_t row = first; row < end; row += kTileRows) {
        run_tile(job.set, task.gate, row / kTileRows, rows, count, gate);
        run_tile(job.set, task.up, row / kTileRows, rows, count, up);
        for (int32_t i = 0; i < count; ++i) {
            float *h = job.h + (task.first + panel + i) * job.intermediate + row;
            const int64_t width = std::min(kTileRows, end - row);
            job.set.silu_mul(gate + i * kTileRows, up + i * kTileRows, h, width);
        }
    }
    for (int32_t i = 0; job.down_is_packed && i < count; ++i) {
        const int64_t at = task.first + panel + i;
        job.quantized_h->take_block(job.set, at, first / kRun, job.h + at * job.intermediate + first);
    }
}

void gate_up_item(const Job &job, const Task &task, int32_t run) {
    for (int32_t panel = 0; panel < task.count; panel += kMostRows)
        gate_up_panel(job, task, run * kRun, panel, std::min(kMostRows, task.count - panel));
}

void down_item(const Job &job, const Task &task, int64_t first, int64_t end) {
    alignas(64) float out[kMostRows * kTileRows];
    for (int64_t tile = first; tile < end; ++tile) {
        const auto width = static_cast<size_t>(std::min<int64_t>(kTileRows, job.hidden - tile * kTileRows));
        for (int32_t panel = 0; panel < task.count; panel += kMostRows) {
            const int32_t count = std::min(kMostRows, task.count - panel);
            run_tile(job.set, task.down, tile, job.middles.data() + task.first + panel, count, out);
            for (int32_t i = 0; i < count; ++i) {
                float *to = job.out + task.slots[panel + i] * job.out_stride + tile * kTileRows;
                std::memcpy(to, out + i * kTileRows, width * sizeof(float));
            }
        }
    }
}

// All gate/up items of all tasks come before all down items, so an item waits only for lower ones, which are claimed.
void run_job(StrataPool *pool, Job &job) {
    const auto count = static_cast<int64_t>(job.tasks.size());
    const int64_t runs = (job.intermediate + kRun - 1) / kRun;
    const int64_t tiles = tiles_of(job.tasks[0].down);
    const int64_t step = std::clamp<int64_t>(count * tiles / (8 * thread_count(pool)), 1, kMostDownTiles);
    const int64_t downs = (tiles + step - 1) / step;
    for_items(pool, count * (runs + downs), [&](int64_t item, int) {
        if (item < count * runs) {
            const auto task = static_cast<size_t>(item / runs);
            gate_up_item(job, job.tasks[task], static_cast<int32_t>(item % runs));
            job.runs_done[task].fetch_add(1, std::memory_order_release);
            return;
        }
        const int64_t down = item - count * runs, first = down % downs * step;
        const auto task = static_cast<size_t>(down / downs);
        Backoff backoff;
        while (job.runs_done[task].load(std::memory_order_acquire) != runs) backoff.wait();
        down_item(job, job.tasks[task], first, std::min(first + step, tiles));
    });
}

int32_t check_jobs(const StrataExpertLayout &layout, const StrataExpertJob *jobs, int32_t job_count,
                   const ExpertInput &input, const float *out) {
    if (!jobs || job_count < 0 || !out || (!input.x && !(input.q && input.d)))
        return fail(STRATA_INVALID, "%d experts, or a null pointer", job_count);
    if (layout.blob_bytes <= 0) return fail(STRATA_INVALID, "the layout was not filled by strata_expert_layout");
    if (!input.x && !(is_packed(layout.gate.code) && is_packed(layout.up.code)))
        return fail(STRATA_INVALID, "quantized activations cannot go through gate or up in a float code");
    for (int32_t e = 0; e < job_count; ++e) {
        const StrataExpertJob &job = jobs[e];
        if (!job.blob || reinterpret_cast<uintptr_t>(job.blob) % 64 != 0)
            return fail(STRATA_INVALID, "the blob of expert %d of the list is missing or misaligned", e);
        if (job.row_count < 0 || (job.row_count > 0 && !(job.rows && job.slots)))
            return fail(STRATA_INVALID, "the rows of expert %d of the list are missing", e);
        for (int32_t i = 0; i < job.row_count; ++i)
            if (job.rows[i] < 0 || job.rows[i] >= input.rows || job.slots[i] < 0)
                return fail(STRATA_INVALID, "row %d or slot %d is out of range", job.rows[i], job.slots[i]);
    }
    return STRATA_OK;
}

}  // namespace

int32_t run_experts(StrataPool *pool, const StrataExpertLayout &layout, const StrataExpertJob *jobs, int32_t job_count,
                    const ExpertInput &input, float *out, int64_t out_stride) {
    if (const int32_t code = check_jobs(layout, jobs, job_count, input, out)) return code;
    int64_t total = 0;
    for (int32_t e = 0; e < job_count; ++e) total += jobs[e].row_count;
    if (total == 0) return STRATA_OK;
    const KernelSet &set = kernels();
    const int32_t hidden = layout.gate.columns, intermediate = layout.gate.rows;
    const bool takes_packed = is_packed(layout.gate.code) || is_packed(layout.up.code);
    const size_t x_bytes = Activations::bytes(input.rows, hidden), h_bytes = Activations::bytes(total, intermediate);

    PoolGuard guard(pool);
    auto *memory = static_cast<char *>(
        guard.scratch(x_bytes + h_bytes + static_cast<size_t>(total * intermediate) * sizeof(float)));
    Activations quantized_x(memory, input.rows, hidden), quantized_h(memory + x_bytes, total, intermediate);
    const auto take = [&](int64_t i, int) {
        if (!input.x)
            quantized_x.take(i, input.q + i * hidden, input.d + i * (hidden / 32));
        else if (takes_packed)
            quantized_x.take(set, i, input.x + i * input.x_stride);
    };
    if (input.rows > 4)
        for_items(pool, input.rows, take);
    else
        for (int32_t i = 0; i < input.rows; ++i) take(i, 0);

    Job job = {set, hidden, intermediate, {}, {}, {}, reinterpret_cast<float *>(memory + x_bytes + h_bytes),
               &quantized_h, is_packed(layout.down.code), nullptr, out, out_stride};
    for (int32_t e = 0; e < job_count; ++e) {
        if (jobs[e].row_count == 0) continue;
        const auto *blob = static_cast<const char *>(jobs[e].blob);
        const auto first = static_cast<int64_t>(job.inputs.size());
        job.tasks.push_back({matrix_in(layout, 0, blob), matrix_in(layout, 1, blob), matrix_in(layout, 2, blob),
                             jobs[e].slots, jobs[e].row_count, first});
        for (int32_t i = 0; i < jobs[e].row_count; ++i) {
            const int64_t row = jobs[e].rows[i], at = first + i;
            job.inputs.push_back(quantized_x.row(row, input.x ? input.x + row * input.x_stride : nullptr));
            job.middles.push_back(quantized_h.row(at, job.h + at * intermediate));
        }
    }
    job.runs_done = std::make_unique<std::atomic<int32_t>[]>(job.tasks.size());
    run_job(pool, job);
    return STRATA_OK;
}

}  // namespace strata

int32_t strata_experts(StrataPool *pool, const StrataExpertLayout *layout, const StrataExpertJob *jobs,
                       int32_t job_count, const float *x, int64_t x_stride, int32_t x_rows, float *out,
                       int64_t out_stride) {
    using namespace strata;
    if (!pool || !layout || !x || x_stride < layout->gate.columns || out_stride < layout->gate.columns)
        return fail(STRATA_INVALID, "pool, layout or x is missing, or rows of x or out overlap");
    return guarded([&]() -> int32_t {
        return run_experts(pool, *layout, jobs, job_count, {x, x_stride, nullptr, nullptr, x_rows}, out, out_stride);
    });
}
