// code4: 4 bits a weight through a table of 16. [tile][block][4 words][16 rows]; word j, byte k holds element 4j + k in
// its low and 16 + 4j + k in its high half. Knows no instruction set.
#pragma once

#include <cstdint>

namespace {

struct Code4 {
    static constexpr int kNumber = 4;
    static constexpr int kBlockBytes = 4 * 64;

    static int weight(const uint8_t *block, int row, int element, const int8_t *table) {
        const int word = element % 16 / 4;
        return table[block[word * 64 + row * 4 + element % 4] >> element / 16 * 4 & 15];
    }

    // words[i] gets elements 4i .. 4i+3 of every row.
    template <class Ops>
    static void decode(const uint8_t *block, const typename Ops::Table &table, typename Ops::Int words[8]) {
        for (int j = 0; j < 4; ++j) {
            const typename Ops::Int packed = Ops::load(block + j * 64);
            words[j] = Ops::look_up(table, Ops::template low_bits<15>(packed));
            words[4 + j] = Ops::look_up(table, Ops::template low_bits<15>(Ops::template shift_right<4>(packed)));
        }
    }

    // The same for a table that counts up by 1, without looking anything up: code << kShift[i / 2].
    static constexpr bool kCanCount = true;
    static constexpr int kShift[4] = {0, 0, 4, 4};
    template <class Ops>
    static void decode_counting(const uint8_t *block, typename Ops::Int words[8]) {
        for (int j = 0; j < 4; ++j) {
            const typename Ops::Int packed = Ops::load_once(block + j * 64);
            words[j] = Ops::template low_bits<0x0f>(packed);
            words[4 + j] = Ops::template low_bits<0xf0>(packed);
        }
    }
};

}  // namespace
