// Heads of every code and size against their definition, one value at a time, in arrays that end where they must; and
// attention over them against attention over the float32 values that they stand for, bit for bit.
#include "hammer_cells.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "mixers/attention.h"
#include "mixers/cell_codes.h"

namespace {

constexpr int32_t kCodes[] = {STRATA_CELL_F32, STRATA_CELL_BF16, STRATA_CELL_CODE8, STRATA_CELL_CODE4};

void require(bool truth, const char *what, int32_t code, int head_dim) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s of code %d, heads of %d values\n", what, code, head_dim);
    std::exit(1);
}

// The float16 next to a value from 0 to 65504, found among all of them: ties go to the even one.
uint16_t nearest_half(float value) {
    const auto of = [](int half) {
        const int exponent = half >> 10, mantissa = half & 1023;
        return exponent ? std::ldexp(1024.0 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    };
    int low = 0, high = 0x7bff;  // of 0 and of 65504
    while (high - low > 1) (of((low + high) / 2) <= value ? low : high) = (low + high) / 2;
    const double below = value - of(low), above = of(high) - value;
    if (below == above) return static_cast<uint16_t>(low & 1 ? high : low);
    return static_cast<uint16_t>(below < above ? low : high);
}

float value_of_half(uint16_t half) {
    const int exponent = half >> 10, mantissa = half & 1023;
    return static_cast<float>(exponent ? std::ldexp(1024.0 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

void rotate_plainly(std::vector<float> &head) {
    const int size = static_cast<int>(head.size());
    for (int stride = 1; stride < size; stride *= 2) {
        for (int i = 0; i < size; ++i) {
            if (i & stride) continue;
            const float a = head[i], b = head[i + stride];
            head[i] = a + b, head[i + stride] = a - b;
        }
    }
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
    for (float &value : head) value *= factor;
}

// One head as it is stored, and the values that it then stands for (of CODE4: of the rotated head).
struct Stored {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scales;
    std::vector<float> values;
};

void store_levels(std::vector<float> head, bool is_4bit, Stored &to) {
    const int size = static_cast<int>(head.size()), group = std::min(size, 64);
    const float most = is_4bit ? 7.0f : 127.0f;
    if (is_4bit) rotate_plainly(head);
    to.codes.assign(static_cast<size_t>(is_4bit ? size / 2 : size), 0);
    for (int first = 0; first < size; first += group) {
        float peak = 0;
        for (int i = first; i < first + group; ++i) peak = std::max(peak, std::fabs(head[i]));
        to.scales.push_back(nearest_half(std::min(peak / most, 65504.0f)));
        const float scale = value_of_half(to.scales.back());
        for (int i = first; i < first + group; ++i) {
            const float exact = scale == 0 ? 0 : std::nearbyint(std::max(-most, std::min(most, head[i] / scale)));
            const int level = static_cast<int>(exact);
            if (!is_4bit) {
                to.codes[i] = static_cast<uint8_t>(static_cast<int8_t>(level));
            } else {
                to.codes[i % (size / 2)] |= static_cast<uint8_t>((level + 8) << (i < size / 2 ? 0 : 4));
            }
            to.values.push_back(static_cast<float>(level) * scale);
        }
    }
}

Stored stored(int32_t code, const std::vector<float> &head) {
    Stored made;
    if (strata::has_scales(code)) {
        store_levels(head, code == STRATA_CELL_CODE4, made);
        return made;
    }
    for (const float value : head) {
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (code == STRATA_CELL_BF16) bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        const int first = code == STRATA_CELL_BF16 ? 2 : 0;
        for (int byte = first; byte < 4; ++byte) made.codes.push_back(static_cast<uint8_t>(bits >> 8 * byte));
        float kept;
        std::memcpy(&kept, &bits, 4);
        made.values.push_back(kept);
    }
    return made;
}

// Cells of one key head, as they are stored and as float32.
struct Side {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scales;
    std::vector<float> values;

    Side(int32_t code, int cells, int head_dim, std::mt19937 &random) {
        std::normal_distribution<float> normal;
        std::vector<float> heads(static_cast<size_t>(cells * head_dim));
        for (int cell = 0; cell < cells; ++cell) {
            const float size = cell % 7 == 3 ? 1e-7f : cell % 7 == 5 ? 30.0f : 1.0f;
            for (int i = 0; i < head_dim; ++i) heads[cell * head_dim + i] = size * normal(random);
            const Stored one = stored(code, {heads.begin() + cell * head_dim, heads.begin() + (cell + 1) * head_dim});
            codes.insert(codes.end(), one.codes.begin(), one.codes.end());
            scales.insert(scales.end(), one.scales.begin(), one.scales.end());
            values.insert(values.end(), one.values.begin(), one.values.end());
        }
        std::vector<uint8_t> found(codes.size());
        std::vector<uint16_t> found_scales(scales.size());
        const int32_t answer =
            strata_encode_cells(code, cells, head_dim, heads.data(), found.data(), found_scales.data());
        require(answer == STRATA_OK, "cells", code, head_dim);
        require(found == codes && found_scales == scales, "bits", code, head_dim);
    }

    strata::CellSide as_stored(int32_t code, int head_dim) const {
        return {code, reinterpret_cast<const char *>(codes.data()), scales.data(), strata::code_bytes(code, head_dim),
                strata::scale_count(code, head_dim)};
    }
    strata::CellSide as_floats(int head_dim) const {
        return {STRATA_CELL_F32, reinterpret_cast<const char *>(values.data()), nullptr, 4 * int64_t{head_dim}, 0};
    }
};

std::vector<float> attended(const strata::Cells &cells, const strata::CellRun &run, const std::vector<float> &queries,
                            int heads) {
    const int64_t floats = strata::split_floats(cells.head_dim);
    std::vector<float> results(static_cast<size_t>(heads * floats), std::nanf(""));
    std::vector<const float *> from;
    std::vector<float *> to;
    for (int head = 0; head < heads; ++head) {
        from.push_back(queries.data() + head * cells.head_dim);
        to.push_back(results.data() + head * floats);
    }
    strata::attend_split(cells, run, from.data(), heads, to.data());
    return results;
}

void attend_both(int32_t code, int head_dim, int cells, int heads, std::mt19937 &random) {
    const Side keys(code, cells, head_dim, random), values(code, cells, head_dim, random);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::vector<float> queries(static_cast<size_t>(heads * head_dim));
    for (float &value : queries) value = normal(random);
    std::vector<int64_t> ids;
    for (int cell = 0; cell < cells; ++cell) {
        if (random() % 3) ids.push_back(cell);
    }
    ids.push_back(cells - 1);
    const strata::Cells as_stored{keys.as_stored(code, head_dim), values.as_stored(code, head_dim), head_dim};
    const strata::Cells as_floats{keys.as_floats(head_dim), values.as_floats(head_dim), head_dim};
    for (const strata::CellRun &run : {strata::CellRun{nullptr, 0, cells}, {nullptr, cells / 2, cells - cells / 2},
                                       {ids.data(), 0, static_cast<int>(ids.size())}}) {
        const std::vector<float> found = attended(as_stored, run, queries, heads);
        const std::vector<float> expected = attended(as_floats, run, queries, heads);
        require(!std::memcmp(found.data(), expected.data(), 4 * found.size()), "attention", code, head_dim);
        for (const float value : found) require(std::isfinite(value), "finite attention", code, head_dim);
    }
}

}  // namespace

void hammer_cells(int rounds) {
    std::mt19937 random(11);
    for (int round = 0; round < rounds; ++round) {
        for (const int32_t code : kCodes) {
            for (const int head_dim : {8, 80, 32, 64, 128, 256}) {
                if (strata::has_scales(code) && strata::check_cells(code, head_dim)) continue;
                const int cells = 1 + static_cast<int>(random() % strata::kKeySplit);
                attend_both(code, head_dim, cells, 1 + static_cast<int>(random() % strata::kMostGroup), random);
            }
        }
    }
}
