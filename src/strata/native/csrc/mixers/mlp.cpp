// Routed experts with their shared expert, or a dense MLP: the second half of a layer. Knows rows of a window; which
// threads compute an expert is the pool's part.
#include <algorithm>
#include <string>

#include "errors.h"
#include "lanes.h"
#include "model.h"
#include "norm.h"
#include "read_cache.h"
#include "router.h"

namespace strata {
namespace {

// The weight of the shared expert's row in the combination.
STRATA_CLONES float gate_of(const float *x, const float *gate, int64_t count) {
    return sigmoid_of(dot(x, gate, count));
}

// down(silu(gate x) * (up x)), gate and up side by side.
void gated_mlp(StrataModel &model, const StrataMlp &mlp, const float *x, int rows, float *output) {
    const int hidden = model.shape.hidden, width = mlp.width;
    float *both = model.scratch.shared.data();
    multiply(model.pool, {&mlp.gate_up}, x, rows, hidden, both, 2 * int64_t{width});
    for_rows(model.pool, rows, width, [&](int64_t row, int) {
        float *gate = both + row * 2 * width;
        strata_silu_mul(gate, gate + width, gate, width);  // its only failure is a null pointer
    });
    multiply(model.pool, {&mlp.down}, both, rows, 2 * int64_t{width}, output, hidden);
}

// Every chosen expert once, with all of its rows.
void list_jobs(Scratch &scratch, const StrataMlp &mlp, int rows) {
    const int pairs = rows * mlp.per_token;
    for (int pair = 0; pair < pairs; ++pair) scratch.job_slots[pair] = pair;
    const int32_t *ids = scratch.ids.data();
    std::sort(scratch.job_slots.begin(), scratch.job_slots.begin() + pairs,
              [ids](int32_t a, int32_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
    scratch.jobs.clear(), scratch.job_experts.clear();
    for (int at = 0; at < pairs; ++at) {
        const int32_t slot = scratch.job_slots[at], expert = ids[slot];
        scratch.job_rows[at] = slot / mlp.per_token;
        if (at > 0 && ids[scratch.job_slots[at - 1]] == expert) {
            ++scratch.jobs.back().row_count;
        } else {
            scratch.jobs.push_back({mlp.blobs[expert], &scratch.job_rows[at], &scratch.job_slots[at], 1, 0});
            scratch.job_experts.push_back(expert);
        }
    }
}

// The rows of all listed experts: in one go, unless so many must be read that memory does not hold them together.
void run_jobs(StrataModel &model, int32_t layer, const float *x, int rows) {
    const StrataMlp &mlp = model.layers[layer].mlp;
    Scratch &scratch = model.scratch;
    const int hidden = model.shape.hidden;
    for (size_t first = 0, count = scratch.jobs.size(); first < scratch.jobs.size(); first += count) {
        if (mlp.reads) {
            const int32_t code = mlp.reads->provide(model.pool, mlp.file_layer, scratch.job_experts, scratch.jobs,
                                                    first, nullptr, count);
            if (code) require(fail(code, "layer %d: %s", layer, std::string(strata_last_error()).c_str()));
        }
        require(strata_experts(model.pool, mlp.layout, &scratch.jobs[first], static_cast<int32_t>(count), x, hidden,
                               rows, scratch.expert_rows.data(), hidden));
    }
}

}  // namespace

void run_mlp(const Part &part, const float *x, float *output) {
    StrataModel &model = part.model;
    const StrataMlp &mlp = model.layers[part.layer].mlp;
    Scratch &scratch = model.scratch;
    const int rows = part.window.rows, hidden = model.shape.hidden;
    if (mlp.router.count == 0) {
        const Clock clock(model.times.dense);
        return gated_mlp(model, mlp, x, rows, output);
    }
    float *shared = nullptr, *shared_weights = nullptr;
    {
        const Clock clock(model.times.dense);
        multiply(model.pool, {&mlp.router}, x, rows, hidden, scratch.logits.data(), mlp.experts);
        for_rows(model.pool, rows, mlp.experts, [&](int64_t row, int) {
            route(scratch.logits.data() + row * mlp.experts, mlp.experts, mlp.per_token, mlp.normalize != 0,
                  scratch.ids.data() + row * mlp.per_token, scratch.weights.data() + row * mlp.per_token);
        });
        if (mlp.width) {
            shared = scratch.shared_rows.data();
            gated_mlp(model, mlp, x, rows, shared);
            if (mlp.shared_gate) shared_weights = scratch.shared_weights.data();
            for_rows(model.pool, mlp.shared_gate ? rows : 0, hidden, [&](int64_t row, int) {
                shared_weights[row] = gate_of(x + row * hidden, mlp.shared_gate, hidden);
            });
        }
    }
    if (part.window.routed) {
        std::copy_n(scratch.ids.data(), rows * mlp.per_token,
                    part.window.routed + int64_t{part.layer} * rows * mlp.per_token);
    }
    const Clock clock(model.times.experts);
    list_jobs(scratch, mlp, rows);
    run_jobs(model, part.layer, x, rows);
    require(strata_combine(model.pool, rows, mlp.per_token, hidden, scratch.expert_rows.data(), scratch.weights.data(),
                           nullptr, shared, hidden, shared_weights, output, hidden));
}

}  // namespace strata
