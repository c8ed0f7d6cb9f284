// Memory asked for before it is read: codes a fixed distance ahead in a run of tiles, and how the next run begins.
#pragma once

#include "kernels.h"
#include "simd/scales.h"

namespace {

using strata::TileRun;

// How far ahead of the decoder codes are asked for, into the L2 cache: 4 to 16 KiB are alike on a Xeon, 2 KiB lose a
// tenth there, none a quarter.
constexpr int kCodesAhead = 8192;

// Asks for a run's codes ahead of the place that is read, beyond the run's end for those of the next run; can
// be told not to, for hardware that does better alone.
class CodesAhead {
public:
    CodesAhead(const TileRun &run, const TileRun &next, bool asks) : asks_(asks) {
        const char *begin = place(run, run.first);
        end_ = place(run, run.end);
        next_ = next.matrix ? place(next, next.first) : begin;  // without one: lines that are there already
        at_ = begin + kCodesAhead < end_ ? begin + kCodesAhead : next_;
    }
    void step(int64_t bytes) {
        if (!asks_) return;
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at_ + line, 0, 2);
        at_ += bytes;
        if (at_ >= end_ && at_ - bytes < end_) at_ = next_ + (at_ - end_);
    }

private:
    static const char *place(const TileRun &run, int64_t tile) {
        const StrataMatrix &m = *run.matrix;
        return static_cast<const char *>(m.codes) + tile * kTileRows * m.columns / 8 * m.code;
    }

    bool asks_;
    const char *at_, *end_, *next_;
};

// Asks for the first lines of every array of a run: they begin streams that no hardware can foresee.
inline void ask_for_start(const TileRun &run) {
    if (!run.matrix) return;
    const StrataMatrix &m = *run.matrix;
    if (m.code > STRATA_CODE8) return;  // float codes are no streams
    const int64_t values = run.first * kTileRows * m.columns, subs = values / m.sub_block, supers = values / 256 * 2;
    ask_for(m.codes, values / 8 * m.code, 1024);
    ask_for(m.scales, subs * scale_bytes(m.scale_kind), 256);
    if (m.super_scales) ask_for(m.super_scales, supers, 64);
    if (m.mins) ask_for(m.mins, subs * min_bytes(m.min_kind), 256);
    if (m.super_mins) ask_for(m.super_mins, supers, 64);
}

}  // namespace
