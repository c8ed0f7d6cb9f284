// How the stages are cut and what a thread does between them.
#include "expert_stages.h"

#include <algorithm>

#include "matrix.h"
#include "pool.h"

namespace strata {
namespace {

// Taken together, of code4 at 2,560 x 640: 46 KB of gate and of up, 23 KB of down.
constexpr int64_t kMostGateTiles = kBlock / kTileRows, kMostDownTiles = 4;
constexpr int64_t kAheadBytes = 128 << 10;  // that a waiting thread asks for: half of a small L2 cache

int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Items that are taken together: eight times a thread or more, so that the last one does not keep others waiting long.
int64_t step(int64_t items, int threads, int64_t most) { return std::clamp<int64_t>(items / (8 * threads), 1, most); }

// Asks for all arrays of a tile, into the L2 cache.
void ask_for_tile(const StrataMatrix &m, int64_t tile) {
    const void *const arrays[] = {m.codes, m.scales, m.super_scales, m.mins, m.super_mins};
    const ArrayBytes bytes = array_bytes(m);
    for (int i = 0; i < 5; ++i) {
        const int64_t size = bytes.of[i] / tiles_of(m);
        const char *at = static_cast<const char *>(arrays[i]) + tile * size;
        for (int64_t line = 0; line < size; line += 64) __builtin_prefetch(at + line, 0, 2);
    }
}

// Items first .. end - 1 of a matrix, as far as there are.
TileRun run_of(const StrataMatrix &m, int64_t first, int64_t end, int64_t item_tiles) {
    return {&m, first * item_tiles, std::min(end * item_tiles, tiles_of(m))};
}

}  // namespace

// The beginning of a share of down, asked for tile by tile by a thread that waits for others' gate and up.
class ExpertStages::Ahead {
public:
    Ahead(const ExpertStages &stages, int share)
        : stages_(stages), item_(stages.down_.begin(share)), end_(stages.down_.begin(share + 1)) {
        const StrataMatrix &down = stages.work_.tasks[0].down;
        end_ = std::min(end_, item_ + kAheadBytes / (stages.item_tiles_ * tile_bytes(down)));
    }
    // False when there is nothing left to ask for.
    bool ask() {
        if (item_ >= end_) return false;
        const TileRun run = stages_.down_tiles(item_, item_ + 1);
        for (int64_t tile = run.first; tile < run.end; ++tile) ask_for_tile(*run.matrix, tile);
        ++item_;
        return true;
    }

private:
    const ExpertStages &stages_;
    int64_t item_, end_;
};

ExpertStages::ExpertStages(const ExpertWork &work, int threads)
    : work_(work), item_tiles_(work.item_tiles), ups_(divide_up(tiles_of(work.tasks[0].gate), item_tiles_)),
      downs_(divide_up(tiles_of(work.tasks[0].down), item_tiles_)),
      gate_up_(work.task_count() * ups_, threads, kMostGateTiles / item_tiles_),
      down_(work.task_count() * downs_, threads,
            step(work.task_count() * downs_, threads, kMostDownTiles / item_tiles_)),
      done_(new Done[work.tasks.size()]) {}

TileRun ExpertStages::gate_tiles(int64_t first, int64_t end) const {
    return run_of(task(first / ups_).gate, first % ups_, first % ups_ + end - first, item_tiles_);
}

TileRun ExpertStages::down_tiles(int64_t first, int64_t end) const {
    return run_of(task(first / downs_).down, first % downs_, first % downs_ + end - first, item_tiles_);
}

void ExpertStages::await_begin(int share) const {
    const TileRun gate = gate_tiles(gate_up_.begin(share), gate_up_.begin(share) + 1);
    const StrataMatrix *const first[] = {gate.matrix, &task(gate_up_.begin(share) / ups_).up};
    Backoff backoff;
    for (int asked = 0; !is_begun_.load(std::memory_order_acquire);)
        asked < 2 ? ask_for_tile(*first[asked++], gate.first) : backoff.wait();
}

void ExpertStages::run_gate_up(const Shares::Run &run, const TileRun &behind) {
    for (int64_t first = run.first, end; first < run.end; first = end) {
        end = std::min(run.end, (first / ups_ + 1) * ups_);
        const int64_t next = end < run.end ? end : run.next;
        gate_up_item(work_, task(first / ups_), gate_tiles(first, end), next < 0 ? behind : gate_tiles(next, next + 1));
        done_[first / ups_].items.fetch_add(static_cast<int32_t>(end - first), std::memory_order_release);
    }
}

void ExpertStages::run_down(const Shares::Run &run, Ahead &ahead) {
    for (int64_t first = run.first, end; first < run.end; first = end) {
        end = std::min(run.end, (first / downs_ + 1) * downs_);
        Backoff backoff;
        while (done_[first / downs_].items.load(std::memory_order_acquire) != ups_)
            if (!ahead.ask()) backoff.wait();
        const int64_t next = end < run.end ? end : run.next;
        const TileRun behind = next < 0 ? TileRun{} : down_tiles(next, next + 1);
        down_item(work_, task(first / downs_), down_tiles(first, end), behind);
    }
}

void ExpertStages::work_off(int share) {
    await_begin(share);
    Ahead ahead(*this, share);
    const TileRun behind = down_tiles(down_.begin(share), down_.begin(share) + 1);
    gate_up_.work_off(share, [&](const Shares::Run &run) { run_gate_up(run, behind); });
    down_.work_off(share, [&](const Shares::Run &run) { run_down(run, ahead); });
}

}  // namespace strata
