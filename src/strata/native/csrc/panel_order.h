// How a panel's columns and rows lie: what panel.cpp writes and the panel kernels (simd/panels.h) read.
// Private to the file that includes it, like all that kernels share.
#pragma once

#include <cstdint>

namespace {

constexpr int kPanelBlocks = 64;    // blocks of a chunk: unpacked, two tiles of them are 64 KiB in the L2 cache
// Columns of a chunk in a float code: as large, and a lane's 33 vectors do not begin where the next lane's do in the L1.
constexpr int kPanelColumns = 528;

// A chunk's blocks (columns) lie lane after lane, so that a lane's sum stays in a register. Place of the one with number
// `index` of `count`.
inline int place_in_chunk(int index, int count, int lanes) {
    const int lane = index % lanes, rest = count % lanes;
    return lane * (count / lanes) + (lane < rest ? lane : rest) + index / lanes;
}

// One block of a group of rows: q [8 words][rows], d [rows], start [3][rows] = -bias * sum of q, total [3][rows] = the
// sum as float32; of the three, 0 is the block, 1 and 2 are its halves. Offsets are bytes for one row of the group.
struct Record {
    static constexpr int kD = 32, kStart = 36, kTotal = 48, kBytes = 60;
};

}  // namespace
