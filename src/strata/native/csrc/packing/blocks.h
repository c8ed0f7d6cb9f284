// What a block of a GGUF file becomes in its storage code, one format a struct: docs/storage-codes.md says what the words
// and scales mean. Knows the bytes of a block; knows no row, no tile and no file.
//
// Each `split` returns false for a block that needs the other road (quant/formats): a scale that is no number, or one
// that this storage cannot hold.
#pragma once

#include <cstdint>
#include <cstring>

namespace strata::packing {

// One block, opened. Formats without mins or super scales have no such arrays (kMins = 0, kIsSuper = false).
template <class Format>
struct Block {
    alignas(16) uint32_t words[Format::kWords];
    typename Format::Scale scales[Format::kScales];
    typename Format::Min mins[Format::kMins ? Format::kMins : 1];
    uint16_t super_scale, super_min;

    // Its bytes, which nothing else that is read lies in.
    uint8_t *bytes() { return reinterpret_cast<uint8_t *>(words); }
};

// What a loop reads and writes does not overlap: compilers need to hear it to use vectors.
using In = const uint8_t *__restrict;
using Out = uint8_t *__restrict;

// Eight bytes at once, and `kept` of each of them after a shift.
inline uint64_t eight(const uint8_t *at) {
    uint64_t bytes;
    std::memcpy(&bytes, at, sizeof bytes);
    return bytes;
}
inline uint64_t bits_of(uint64_t bytes, int shift, uint64_t kept) { return bytes >> shift & kept * 0x0101010101010101u; }

inline uint16_t half_at(const uint8_t *at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

inline bool is_finite_half(uint16_t bits) { return (bits & 0x7C00) != 0x7C00; }

constexpr uint16_t kSignOfHalf = 0x8000;  // a code subtracts what some formats add

// Blocks of 32 weights with f16 scales, and an f16 minimum where kHasMin is.
template <int type, int size, int words, bool kHasMin>
struct HalfScaled {
    static constexpr int kType = type, kBytes = size, kWeights = 32, kWords = words, kScales = 1, kMins = kHasMin;
    static constexpr bool kIsSuper = false, kIsSuperMin = false;
    using Scale = uint16_t;
    using Min = uint16_t;
    static constexpr int kBegin = kHasMin ? 4 : 2;  // of the codes

    template <class Block>
    static bool split_scales(const uint8_t *at, Block &out) {
        out.scales[0] = half_at(at);
        bool is_good = is_finite_half(out.scales[0]);
        if (kHasMin) {
            out.mins[0] = half_at(at + 2) ^ kSignOfHalf;
            is_good &= is_finite_half(out.mins[0]);
        }
        return is_good;
    }
};

// The codes are words as they lie: Q4_0, Q4_1, IQ4_NL, Q8_0.
template <int type, int size, int words, bool kHasMin>
struct AsTheyLie : HalfScaled<type, size, words, kHasMin> {
    using Base = HalfScaled<type, size, words, kHasMin>;

    static bool split(const uint8_t *at, Block<AsTheyLie> &out) {
        std::memcpy(out.words, at + Base::kBegin, 4 * words);
        return Base::split_scales(at, out);
    }
};

// Nibbles, and the fifth bits of all weights in a word of their own: Q5_0 (minus 16) and Q5_1.
template <int type, int size, bool kHasMin>
struct FiveBits : HalfScaled<type, size, 8, kHasMin> {
    using Base = HalfScaled<type, size, 8, kHasMin>;

    static bool split(const uint8_t *at, Block<FiveBits> &out) {
        constexpr int kZero = kHasMin ? 0 : 16;
        uint32_t fifth;
        std::memcpy(&fifth, at + Base::kBegin, 4);
        In nibbles = at + Base::kBegin + 4;
        Out bytes = out.bytes();
        for (int i = 0; i < 16; ++i) {
            bytes[i] = static_cast<uint8_t>(((nibbles[i] & 15) | (fifth >> i & 1) << 4) - kZero);
            bytes[16 + i] = static_cast<uint8_t>((nibbles[i] >> 4 | (fifth >> (16 + i) & 1) << 4) - kZero);
        }
        return Base::split_scales(at, out);
    }
};

// 64 weights of two bits, four a byte in their order.
struct Q2_0 {
    static constexpr int kType = 42, kBytes = 18, kWeights = 64, kWords = 4, kScales = 1, kMins = 0;
    static constexpr bool kIsSuper = false, kIsSuperMin = false;
    using Scale = uint16_t;
    using Min = uint16_t;

    static bool split(const uint8_t *at, Block<Q2_0> &out) {
        out.scales[0] = half_at(at);
        for (int i = 0; i < 16; ++i) {  // byte i % 8 of block i / 8 of 32 weights
            const uint8_t *codes = at + 2 + i / 8 * 8 + i % 8 / 4;
            const int shift = 2 * (i % 4);
            unsigned joined = 0;
            for (int f = 0; f < 4; ++f) joined |= (codes[2 * f] >> shift & 3u) << (2 * f);
            out.bytes()[i] = static_cast<uint8_t>(joined);
        }
        return is_finite_half(out.scales[0]);
    }
};

// 256 weights under f16 super scales.
template <int type, int size, int words, int scales, bool kHasMin>
struct SuperScaled {
    static constexpr int kType = type, kBytes = size, kWeights = 256, kWords = words, kScales = scales;
    static constexpr int kMins = kHasMin ? scales : 0;
    static constexpr bool kIsSuper = true, kIsSuperMin = kHasMin;
    using Scale = int8_t;
    using Min = uint8_t;

    template <class Block>
    static bool split_supers(const uint8_t *at, Block &out) {
        out.super_scale = half_at(at);
        bool is_good = is_finite_half(out.super_scale);
        if (kHasMin) {
            out.super_min = half_at(at + 2);
            is_good &= is_finite_half(out.super_min);
        }
        return is_good;
    }
};

struct Q2_K : SuperScaled<10, 84, 16, 16, true> {
    static bool split(const uint8_t *at, Block<Q2_K> &out) {
        for (int i = 0; i < 16; ++i) {
            out.scales[i] = static_cast<int8_t>(at[i] & 15);
            out.mins[i] = at[i] >> 4;
        }
        for (int block = 0; block < 8; ++block) {
            const uint8_t *codes = at + 16 + block / 4 * 32;
            uint64_t joined = 0;
            for (int f = 0; f < 4; ++f) joined |= bits_of(eight(codes + 8 * f), 2 * (block % 4), 3) << (2 * f);
            std::memcpy(out.bytes() + 8 * block, &joined, 8);
        }
        return split_supers(at + 80, out);
    }
};

struct Q3_K : SuperScaled<11, 110, 32, 16, false> {
    static bool split(const uint8_t *at, Block<Q3_K> &out) {
        for (int i = 0; i < 16; ++i) {
            const int low = i < 8 ? at[96 + i] & 15 : at[88 + i] >> 4;
            const int high = at[104 + i % 4] >> (2 * (i / 4)) & 3;
            out.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
        }
        for (int block = 0; block < 8; ++block) {
            const uint8_t *codes = at + 32 + block / 4 * 32;
            for (int i = 0; i < 16; i += 8) {
                uint64_t halves[2];
                for (int half = 0; half < 2; ++half)
                    halves[half] = bits_of(eight(codes + 16 * half + i), 2 * (block % 4), 3) |
                                   bits_of(eight(at + 16 * half + i), block, 1) << 2;
                halves[0] |= halves[1] << 4;
                std::memcpy(out.bytes() + 16 * block + i, halves, 8);
            }
        }
        return split_supers(at + 108, out);
    }
};

// Scales and minimums of Q4_K and Q5_K: the first four of each have their 6 bits together, the last four have their low
// four bits in a third group of bytes and their high two above the first four's.
template <class Block>
void split_six_bits(const uint8_t *at, Block &out) {
    for (int i = 0; i < 4; ++i) {
        out.scales[i] = static_cast<int8_t>(at[i] & 63);
        out.mins[i] = at[4 + i] & 63;
        out.scales[4 + i] = static_cast<int8_t>((at[8 + i] & 15) | at[i] >> 6 << 4);
        out.mins[4 + i] = static_cast<uint8_t>(at[8 + i] >> 4 | at[4 + i] >> 6 << 4);
    }
}

struct Q4_K : SuperScaled<12, 144, 32, 8, true> {
    static bool split(const uint8_t *at, Block<Q4_K> &out) {
        split_six_bits(at + 4, out);
        for (int pair = 0; pair < 4; ++pair) {
            In codes = at + 16 + 32 * pair;
            Out bytes = out.bytes() + 32 * pair;
            for (int i = 0; i < 16; ++i) {
                bytes[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[16 + i] & 15) << 4);
                bytes[16 + i] = static_cast<uint8_t>(codes[i] >> 4 | (codes[16 + i] & 0xF0));
            }
        }
        return split_supers(at, out);
    }
};

struct Q5_K : SuperScaled<13, 176, 64, 8, true> {
    static bool split(const uint8_t *at, Block<Q5_K> &out) {
        split_six_bits(at + 4, out);
        for (int block = 0; block < 8; ++block) {
            In fifth = at + 16, codes = at + 48 + block / 2 * 32;
            Out bytes = out.bytes() + 32 * block;
            const int shift = 4 * (block % 2);
            for (int i = 0; i < 32; ++i)
                bytes[i] =
                    static_cast<uint8_t>((codes[i] >> shift & 15) | (fifth[i] >> block & 1) << 4);
        }
        return split_supers(at, out);
    }
};

struct Q6_K : SuperScaled<14, 210, 64, 16, false> {
    static bool split(const uint8_t *at, Block<Q6_K> &out) {
        std::memcpy(out.scales, at + 192, 16);
        for (int block = 0; block < 8; ++block) {
            const int half = block / 4, quarter = block % 4;
            In low = at + 64 * half + quarter % 2 * 32, high = at + 128 + 32 * half;
            Out bytes = out.bytes() + 32 * block;
            const int shift = quarter / 2 * 4;
            for (int i = 0; i < 32; ++i)
                bytes[i] = static_cast<uint8_t>(
                    ((low[i] >> shift & 15) | (high[i] >> (2 * quarter) & 3) << 4) - 32);
        }
        return split_supers(at + 208, out);
    }
};

struct IQ4_XS : SuperScaled<23, 136, 32, 8, false> {
    static bool split(const uint8_t *at, Block<IQ4_XS> &out) {
        std::memcpy(out.words, at + 8, 128);
        for (int i = 0; i < 8; ++i) {
            const int low = at[4 + i / 2] >> (4 * (i % 2)) & 15, high = at[2 + i / 4] >> (2 * (i % 4)) & 3;
            out.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
        }
        return split_supers(at, out);
    }
};

// A scale is a power of two; the table holds doubled values, so it is stored halved: its number less one.
struct MXFP4 {
    static constexpr int kType = 39, kBytes = 17, kWeights = 32, kWords = 4, kScales = 1, kMins = 0;
    static constexpr bool kIsSuper = false, kIsSuperMin = false;
    using Scale = uint8_t;
    using Min = uint8_t;

    static bool split(const uint8_t *at, Block<MXFP4> &out) {
        std::memcpy(out.words, at + 1, 16);
        constexpr uint32_t kWithoutSigns = 0x77777777;
        const bool is_zero = ((out.words[0] | out.words[1] | out.words[2] | out.words[3]) & kWithoutSigns) == 0;
        const int exponent = is_zero ? 1 : at[0];  // that of a block of zeros says nothing
        out.scales[0] = static_cast<uint8_t>(exponent - 1);
        return at[0] != 255 && exponent != 0;
    }
};

struct NVFP4 {
    static constexpr int kType = 40, kBytes = 36, kWeights = 64, kWords = 8, kScales = 4, kMins = 0;
    static constexpr bool kIsSuper = false, kIsSuperMin = false;
    using Scale = uint8_t;
    using Min = uint8_t;

    static bool split(const uint8_t *at, Block<NVFP4> &out) {
        bool is_good = true;
        for (int i = 0; i < 4; ++i) {
            is_good &= at[i] != 0xFF;
            out.scales[i] = at[i] == 0x7F ? 0 : at[i] & 0x7F;
        }
        for (int block = 0; block < 2; ++block) {
            const uint8_t *first = at + 4 + 16 * block, *second = first + 8;
            uint8_t *bytes = out.bytes() + 16 * block;
            for (int i = 0; i < 8; ++i) {
                bytes[i] = static_cast<uint8_t>((first[i] & 15) | (second[i] & 15) << 4);
                bytes[8 + i] = static_cast<uint8_t>(first[i] >> 4 | (second[i] & 0xF0));
            }
        }
        return is_good;
    }
};

using Q4_0 = AsTheyLie<2, 18, 4, false>;
using Q4_1 = AsTheyLie<3, 20, 4, true>;
using Q5_0 = FiveBits<6, 22, false>;
using Q5_1 = FiveBits<7, 24, true>;
using Q8_0 = AsTheyLie<8, 34, 8, false>;
using IQ4_NL = AsTheyLie<20, 18, 4, false>;

}  // namespace strata::packing
