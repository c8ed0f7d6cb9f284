// The definition: every operation of docs/storage-codes.md, one number at a time. All other paths equal it to the bit.
// Knows no vector and no thread.
#include <cmath>
#include <initializer_list>

#include "codes/codes.h"
#include "matrix.h"
#include "weight_values.h"

namespace strata {
namespace {

void quantize(const float *x, int32_t columns, int8_t *q, float *d, int32_t *sums) {
    for (int32_t b = 0; b < columns / 32; ++b) {
        float largest = 0.0f;
        for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[b * 32 + i]));
        const bool is_zero = largest < kTiny;
        d[b] = is_zero ? 0.0f : largest / 127.0f;
        const float inverse = is_zero ? 0.0f : 1.0f / d[b];
        sums[b * 2] = sums[b * 2 + 1] = 0;
        for (int i = 0; i < 32; ++i) {
            const float rounded = std::nearbyint(x[b * 32 + i] * inverse);
            const float kept = std::fmin(std::fmax(rounded, -127.0f), 127.0f);
            q[b * 32 + i] = static_cast<int8_t>(kept);
            sums[b * 2 + i / 16] += q[b * 32 + i];
        }
    }
}

float tree(float *lanes, int count) {
    for (int half = count / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <class Code>
float packed_row(const StrataMatrix &m, int64_t tile, int row, const Row &x) {
    const int64_t blocks = m.columns / 32;
    const auto *codes = static_cast<const uint8_t *>(m.codes) + tile * blocks * Code::kBlockBytes;
    const int parts = m.sub_block == 16 ? 2 : 1, length = 32 / parts;
    float lanes[8] = {};
    for (int64_t b = 0; b < blocks; ++b) {
        float &lane = lanes[b % 8];
        for (int part = 0; part < parts; ++part) {
            int32_t sum = 0;
            for (int e = part * length; e < (part + 1) * length; ++e)
                sum += Code::weight(codes + b * Code::kBlockBytes, row, e, m.table) * x.q[b * 32 + e];
            const float scale = scale_of(m, tile, (b * 32 + part * length) / m.sub_block, row);
            lane = std::fma(scale * x.d[b], static_cast<float>(sum), lane);
        }
        for (int part = 0; m.min_kind != STRATA_MIN_NONE && part < parts; ++part) {
            const int32_t sum = parts == 2 ? x.sums[b * 2 + part] : x.sums[b * 2] + x.sums[b * 2 + 1];
            const float min = min_of(m, tile, (b * 32 + part * length) / m.sub_block, row);
            lane = std::fma(-(min * x.d[b]), static_cast<float>(sum), lane);
        }
    }
    return tree(lanes, 8);
}

float finish(float sum, const StrataMatrix &m) { return m.post_scale == 1.0f ? sum : sum * m.post_scale; }

void packed_tile(const StrataMatrix &m, int64_t tile, const Row *rows, int32_t count, float *out) {
    with_code(m.code, [&](auto code) {
        for (int32_t i = 0; i < count; ++i)
            for (int r = 0; r < kTileRows; ++r)
                out[i * kTileRows + r] = finish(packed_row<decltype(code)>(m, tile, r, rows[i]), m);
    });
}

void packed_stream(const TileRun &run, const TileRun &, const Row &row, float *out) {
    for (int64_t tile = run.first; tile < run.end; ++tile, out += kTileRows)
        packed_tile(*run.matrix, tile, &row, 1, out);
}

void float_tile(const StrataMatrix &m, int64_t tile, const Row *rows, int32_t count, float *out) {
    for (int32_t i = 0; i < count; ++i) {
        for (int r = 0; r < kTileRows; ++r) {
            float lanes[16] = {};
            for (int64_t k = 0; k < m.columns; ++k)
                lanes[k % 16] = std::fma(float_weight(m, tile, k, r), rows[i].x[k], lanes[k % 16]);
            out[i * kTileRows + r] = finish(tree(lanes, 16), m);
        }
    }
}

float exp_of(float x) {
    const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = std::fma(n, -0.693145752f, clamped);
    r = std::fma(n, -1.42860677e-6f, r);
    float p = 1.0f / 720.0f;
    for (float factor : {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) p = std::fma(p, r, factor);
    return p * float_of_bits(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

void silu_mul(const float *gate, const float *up, float *h, int64_t count) {
    for (int64_t i = 0; i < count; ++i) h[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

void add_scaled(float weight, const float *row, float *total, int64_t count) {
    for (int64_t i = 0; i < count; ++i) total[i] = std::fma(weight, row[i], total[i]);
}

void read_bytes(const void *bytes, int64_t size) {
    const auto *words = static_cast<const volatile uint64_t *>(bytes);
    for (int64_t i = 0; i < size / 8; ++i) (void)words[i];
}

int64_t multiply_only(int64_t rounds) {
    const volatile int32_t weight = 3;
    int32_t sum = 0;
    for (int64_t round = 0; round < rounds; ++round) sum = (sum + weight) & 0xffff;
    const volatile int32_t seen = sum;
    (void)seen;
    return rounds;
}

}  // namespace

const KernelSet kScalarKernels = {quantize, packed_tile, packed_stream, float_tile, {},        nullptr,
                                  nullptr,  silu_mul,    add_scaled,    read_bytes, multiply_only};

}  // namespace strata
