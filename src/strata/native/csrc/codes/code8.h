// code8: the int8 itself. [tile][block][8 words][16 rows]; word j holds elements 4j .. 4j+3. Knows no instruction set.
#pragma once

#include <cstdint>

namespace {

struct Code8 {
    static constexpr int kNumber = 8;
    static constexpr int kBlockBytes = 8 * 64;

    static int weight(const uint8_t *block, int row, int element, const int8_t *) {
        return static_cast<int8_t>(block[element / 4 * 64 + row * 4 + element % 4]);
    }

    // words[i] gets elements 4i .. 4i+3 of every row.
    template <class Ops>
    static void decode(const uint8_t *block, const typename Ops::Table &, typename Ops::Int words[8]) {
        for (int j = 0; j < 8; ++j) words[j] = Ops::from_signed(Ops::load(block + j * 64));
    }

    static constexpr bool kCanCount = false;
};

}  // namespace
