// A list of experts on all threads in two stages, each dealt in contiguous shares: gate and up of all tasks, then down
// of all tasks. Knows no router and no pool.
#pragma once

#include <atomic>
#include <memory>

#include "expert_items.h"
#include "shares.h"

namespace strata {

class ExpertStages {
public:
    // The work must outlive this.
    ExpertStages(const ExpertWork &work, int threads);

    // Activations and post scales are there; until then who works off a share asks for its first weights and waits.
    void begin() { is_begun_.store(true, std::memory_order_release); }
    // What one thread does, or another one for it. A thread goes on to down when every gate/up item is taken, so it
    // waits only for threads that are at work, and asks for the beginning of its share of down meanwhile.
    void work_off(int share);

private:
    struct alignas(64) Done {
        std::atomic<int32_t> items{0};  // gate/up items of a task
    };
    class Ahead;

    // Of the items first .. end - 1 of a stage those that belong to the first one's task.
    TileRun gate_tiles(int64_t first, int64_t end) const;
    TileRun down_tiles(int64_t first, int64_t end) const;
    const ExpertTask &task(int64_t number) const { return work_.tasks[static_cast<size_t>(number)]; }
    void await_begin(int share) const;
    void run_gate_up(const Shares::Run &run, const TileRun &behind);
    void run_down(const Shares::Run &run, Ahead &ahead);

    const ExpertWork &work_;
    const int64_t item_tiles_;   // of gate, up or down
    const int64_t ups_, downs_;  // items of a task's gate and up, of its down
    Shares gate_up_, down_;
    std::atomic<bool> is_begun_{false};
    std::unique_ptr<Done[]> done_;
};

}  // namespace strata
