// code2: 2 bits a weight through a table of 4. [tile][block][2 words][16 rows]; word j, byte k, bits 2f and 2f+1 hold
// element 8f + 4j + k. Knows no instruction set.
#pragma once

#include <cstdint>

namespace {

struct Code2 {
    static constexpr int kNumber = 2;
    static constexpr int kBlockBytes = 2 * 64;

    static int weight(const uint8_t *block, int row, int element, const int8_t *table) {
        const int word = element / 4 % 2;
        return table[block[word * 64 + row * 4 + element % 4] >> element / 8 * 2 & 3];
    }

    // words[i] gets elements 4i .. 4i+3 of every row.
    template <class Ops>
    static void decode(const uint8_t *block, const typename Ops::Table &table, typename Ops::Int words[8]) {
        for (int j = 0; j < 2; ++j) {
            const typename Ops::Int packed = Ops::load(block + j * 64);
            words[j] = Ops::look_up(table, Ops::template low_bits<3>(packed));
            words[2 + j] = Ops::look_up(table, Ops::template low_bits<3>(Ops::template shift_right<2>(packed)));
            words[4 + j] = Ops::look_up(table, Ops::template low_bits<3>(Ops::template shift_right<4>(packed)));
            words[6 + j] = Ops::look_up(table, Ops::template low_bits<3>(Ops::template shift_right<6>(packed)));
        }
    }

    // The same for a table that counts up by 1, without looking anything up: code << kShift[i / 2].
    static constexpr bool kCanCount = true;
    static constexpr int kShift[4] = {0, 2, 4, 6};
    template <class Ops>
    static void decode_counting(const uint8_t *block, typename Ops::Int words[8]) {
        for (int j = 0; j < 2; ++j) {
            const typename Ops::Int packed = Ops::load_once(block + j * 64);
            words[j] = Ops::template low_bits<0x03>(packed);
            words[2 + j] = Ops::template low_bits<0x0c>(packed);
            words[4 + j] = Ops::template low_bits<0x30>(packed);
            words[6 + j] = Ops::template low_bits<0xc0>(packed);
        }
    }
};

}  // namespace
