// Lists of experts and rows: quantizes the rows, cuts the experts into one job of numbered items, so that every byte is
// read once and a few experts keep all threads busy. Knows no router; router weights are applied by combine.
#include "experts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "errors.h"
#include "expert_stages.h"
#include "panel_products.h"
#include "pool.h"

namespace strata {
namespace {

constexpr int32_t kFewRows = 4;  // that the caller takes alone, while others ask for the first weights
constexpr int64_t kPassRows = 4096;  // (expert, row) pairs of one job: a bound for scratch memory

StrataMatrix matrix_in(const StrataExpertLayout &layout, int which, const char *blob) {
    const StrataMatrix *const forms[] = {&layout.gate, &layout.up, &layout.down};
    StrataMatrix m = *forms[which];
    const int64_t *offsets = layout.offsets[which];
    const auto at = [&](int array) -> const void * { return offsets[array] < 0 ? nullptr : blob + offsets[array]; };
    m.codes = at(0), m.scales = at(1), m.super_scales = at(2), m.mins = at(3), m.super_mins = at(4);
    return m;
}

void read_post_scales(const StrataExpertLayout &layout, const char *blob, ExpertTask &task) {
    float post_scales[3];
    std::memcpy(post_scales, blob + layout.post_scales_offset, sizeof post_scales);
    task.gate.post_scale = post_scales[0], task.up.post_scale = post_scales[1], task.down.post_scale = post_scales[2];
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

// The panels of every task that has many rows, in memory behind one another.
class TaskPanels {
public:
    TaskPanels(const KernelSet &set, const StrataExpertLayout &layout) : set_(set), layout_(layout) {
        x_kinds_.add(layout.gate.code), x_kinds_.add(layout.up.code), h_kinds_.add(layout.down.code);
    }
    bool wanted(int64_t rows) const {
        return wants_panels(set_, layout_.gate.code, rows) && wants_panels(set_, layout_.down.code, rows);
    }
    size_t bytes(int64_t rows) const { return wanted(rows) ? x_bytes(rows) + h_bytes(rows) : 0; }
    void make(ExpertTask &task, char *memory) {
        if (!wanted(task.count)) return;
        made_.push_back(std::make_unique<Panels>(set_.form, x_kinds_, layout_.gate.columns, task.count, memory));
        task.x = made_.back().get();
        memory += x_bytes(task.count);
        made_.push_back(std::make_unique<Panels>(set_.form, h_kinds_, layout_.down.columns, task.count, memory));
        task.h = made_.back().get();
    }

private:
    size_t x_bytes(int64_t rows) const { return Panels::bytes(set_.form, x_kinds_, layout_.gate.columns, rows); }
    size_t h_bytes(int64_t rows) const { return Panels::bytes(set_.form, h_kinds_, layout_.down.columns, rows); }

    const KernelSet &set_;
    const StrataExpertLayout &layout_;
    Panels::Kinds x_kinds_, h_kinds_;
    std::vector<std::unique_ptr<Panels>> made_;
};

void fill_panels(StrataPool *pool, const ExpertWork &work) {
    struct Item {
        const ExpertTask *task;
        int64_t group;
    };
    std::vector<Item> items;
    for (const ExpertTask &task : work.tasks)
        for (int64_t group = 0; task.x && group < task.x->groups(); ++group) items.push_back({&task, group});
    for_items(pool, static_cast<int64_t>(items.size()), [&](int64_t i, int) {
        const Item &item = items[static_cast<size_t>(i)];
        item.task->x->take_group(item.group, work.inputs.data() + item.task->first, [](int64_t) {});
    });
}

// Jobs of at least one row each, as one job of the pool.
void run_pass(StrataPool *pool, const StrataExpertLayout &layout, const std::vector<StrataExpertJob> &jobs,
              const ExpertInput &input, float *out, int64_t out_stride) {
    const KernelSet &set = kernels();
    const int32_t hidden = layout.gate.columns, intermediate = layout.gate.rows;
    // Read by the caller before the others begin; all of them are far away.
    for (const StrataExpertJob &job : jobs)
        __builtin_prefetch(static_cast<const char *>(job.blob) + layout.post_scales_offset);
    TaskPanels panels(set, layout);
    int64_t total = 0;
    size_t panel_bytes = 0;
    for (const StrataExpertJob &job : jobs) total += job.row_count, panel_bytes += panels.bytes(job.row_count);
    const bool takes_packed = is_packed(layout.gate.code) || is_packed(layout.up.code);
    const size_t x_bytes = Activations::bytes(input.rows, hidden), h_bytes = Activations::bytes(total, intermediate);
    const size_t middle_bytes = (static_cast<size_t>(total * intermediate) * sizeof(float) + 63) / 64 * 64;

    PoolGuard guard(pool);
    auto *memory = static_cast<char *>(guard.scratch(x_bytes + h_bytes + middle_bytes + panel_bytes));
    Activations quantized_x(memory, input.rows, hidden), quantized_h(memory + x_bytes, total, intermediate);
    const auto take = [&](int64_t i, int) {
        if (!input.x)
            quantized_x.take(i, input.q + i * hidden, input.d + i * (hidden / 32));
        else if (takes_packed)
            quantized_x.take(set, i, input.x + i * input.x_stride);
    };
    const bool takes_meanwhile = input.rows <= kFewRows && panel_bytes == 0;
    if (!takes_meanwhile) for_items(pool, input.rows, take);

    const int32_t item_tiles = panel_bytes > 0 ? kBlock / kTileRows : 1;
    const size_t blocks = (static_cast<size_t>(intermediate) + kBlock - 1) / kBlock;
    ExpertWork work = {set, hidden, intermediate, item_tiles, {}, {}, {},
                       reinterpret_cast<float *>(memory + x_bytes + h_bytes), &quantized_h,
                       std::make_unique<std::atomic<int32_t>[]>(jobs.size() * blocks), out, out_stride};
    work.tasks.reserve(jobs.size());
    char *panel_memory = memory + x_bytes + h_bytes + middle_bytes;
    for (const StrataExpertJob &job : jobs) {
        const auto *blob = static_cast<const char *>(job.blob);
        const auto first = static_cast<int64_t>(work.inputs.size());
        work.tasks.push_back({matrix_in(layout, 0, blob), matrix_in(layout, 1, blob), matrix_in(layout, 2, blob),
                              job.slots, job.row_count, first, nullptr, nullptr});
        panels.make(work.tasks.back(), panel_memory);
        panel_memory += panels.bytes(job.row_count);
        for (int32_t i = 0; i < job.row_count; ++i) {
            const int64_t row = job.rows[i], at = first + i;
            work.inputs.push_back(quantized_x.row(row, input.x ? input.x + row * input.x_stride : nullptr));
            work.middles.push_back(quantized_h.row(at, work.h + at * intermediate));
        }
    }
    fill_panels(pool, work);
    ExpertStages stages(work, thread_count(pool));
    for_shares(pool, thread_count(pool), [&](int64_t share, int) {
        if (share == 0) {  // the caller's
            for (int32_t i = 0; takes_meanwhile && i < input.rows; ++i) take(i, 0);
            for (size_t e = 0; e < jobs.size(); ++e)
                read_post_scales(layout, static_cast<const char *>(jobs[e].blob), work.tasks[e]);
            stages.begin();
        }
        stages.work_off(static_cast<int>(share));
    });
}

}  // namespace

int32_t run_experts(StrataPool *pool, const StrataExpertLayout &layout, const StrataExpertJob *jobs, int32_t job_count,
                    const ExpertInput &input, float *out, int64_t out_stride) {
    if (const int32_t code = check_jobs(layout, jobs, job_count, input, out)) return code;
    std::vector<StrataExpertJob> pass;
    int64_t rows = 0;
    for (int32_t e = 0; e < job_count; ++e) {
        if (jobs[e].row_count > 0) pass.push_back(jobs[e]);
        rows += jobs[e].row_count;
        if (pass.empty() || (e + 1 < job_count && rows + jobs[e + 1].row_count <= kPassRows)) continue;
        run_pass(pool, layout, pass, input, out, out_stride);
        pass.clear();
        rows = 0;
    }
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
