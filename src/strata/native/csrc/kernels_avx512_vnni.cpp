// The AVX-512 VNNI path: a vector is the 16 rows of a tile. Weights are biased by 128 to become unsigned, the sum
// starts at -128 times the sum of q. Knows no thread.
#include "simd/ops_256.h"

#include "simd/kernel_set.h"

namespace {

struct Ops512 {
    using Int = __m512i;
    using Float = __m512;
    using Table = __m512i;
    static constexpr int kRows = 16;
    static constexpr int kUnrolledRows = 2;  // 16 of the 32 registers hold lanes
    static constexpr int kPanelVectors = 2;
    static constexpr int kPackedGroup = 4;
    static constexpr int kFloatGroup = 8;
    static constexpr int32_t kBias = 128;
    static constexpr bool kTakesAnyByte = true;

    static Int load(const void *at) { return _mm512_loadu_si512(at); }
    // A load that the compiler does not repeat inside every instruction that uses it: a cycle has room for one of 64 bytes.
    static Int load_once(const void *at) {
        Int v = load(at);
        __asm__("" : "+v"(v));
        return v;
    }
    static void store(void *at, Int v) { _mm512_storeu_si512(at, v); }
    static Int zero() { return _mm512_setzero_si512(); }
    static Int set_int(int32_t value) { return _mm512_set1_epi32(value); }
    static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
    template <int Mask>
    static Int low_bits(Int v) {
        return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(Mask)));
    }
    template <int Bits>
    static Int shift_right(Int v) {
        return _mm512_srli_epi16(v, Bits);
    }
    template <int Bits>
    static Int divide_by_power(Int v) {
        return _mm512_srai_epi32(v, Bits);
    }
    static Int look_up(Table table, Int index) { return _mm512_shuffle_epi8(table, index); }
    static Int from_signed(Int w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
    static Table table(const int8_t *values) {
        return from_signed(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values))));
    }
    using Weight = Int;
    static Weight weight(const void *at) { return load(at); }
    static Int dot(Int sum, Int w, Int q) { return _mm512_dpbusd_epi32(sum, w, q); }

    static Float set_float(float value) { return _mm512_set1_ps(value); }
    static Float load_float(const float *at) { return _mm512_loadu_ps(at); }
    static void store_float(float *at, Float v) { _mm512_storeu_ps(at, v); }
    static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
    static Float add_float(Float a, Float b) { return _mm512_add_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Float fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
    static Float two_to(Float n) {
        const Int exponent = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
    }

    static __m128i sixteen_bytes(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
    static __m256i sixteen_words(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
    static Float of_half(const uint16_t *at) { return _mm512_cvtph_ps(sixteen_words(at)); }
    static Float of_bf16(const uint16_t *at) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen_words(at)), 16));
    }
    static Float of_int8(const uint8_t *at) { return to_float(_mm512_cvtepi8_epi32(sixteen_bytes(at))); }
    static Float of_uint8(const uint8_t *at) { return to_float(_mm512_cvtepu8_epi32(sixteen_bytes(at))); }
    static Float of_e8m0(const uint8_t *at) {
        const Int wide = _mm512_slli_epi32(_mm512_cvtepu8_epi32(sixteen_bytes(at)), 23);
        const __mmask16 is_zero = _mm512_testn_epi32_mask(wide, wide);
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(wide, is_zero, set_int(0x00400000)));
    }
    // 2^-8 of the value: a half's exponent is 8 less. The sign comes along with the byte's widening.
    static Float of_e4m3_small(const uint8_t *at) {
        const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(at)), 7);
        return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0xbf80))));
    }
    // A half of the same bits is 2^-8 of it.
    static Float of_ue4m3(const uint8_t *at) {
        const __m256i wide = _mm256_and_si256(_mm256_cvtepu8_epi16(sixteen_bytes(at)), _mm256_set1_epi16(0x7f));
        return mul(_mm512_cvtph_ps(_mm256_slli_epi16(wide, 7)), set_float(256.0f));
    }

    static void quantize(const float *x, int32_t columns, int8_t *q, float *d, int32_t *sums) {
        for (int32_t b = 0; b < columns / 32; ++b, x += 32, q += 32) {
            const Float v[2] = {load_float(x), load_float(x + 16)};
            const float top = _mm512_reduce_max_ps(max(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])));
            const bool is_zero = top < strata::kTiny;
            d[b] = is_zero ? 0.0f : top / 127.0f;
            const Float inverse = set_float(is_zero ? 0.0f : 1.0f / d[b]);
            for (int i = 0; i < 2; ++i) {
                const Int whole = _mm512_cvtps_epi32(mul(v[i], inverse));
                const Int kept = _mm512_max_epi32(_mm512_min_epi32(whole, set_int(127)), set_int(-127));
                const __m128i bytes = _mm512_cvtepi32_epi8(kept);
                _mm_storeu_si128(reinterpret_cast<__m128i *>(q + i * 16), bytes);
                sums[b * 2 + i] = sum_of_16(bytes);
            }
        }
    }

    static void read_bytes(const void *bytes, int64_t size) {
        const char *at = static_cast<const char *>(bytes);
        Int seen = zero();
        for (int64_t i = 0; i + 256 <= size; i += 256) {
            __builtin_prefetch(at + i + 4096, 0, 2), __builtin_prefetch(at + i + 4160, 0, 2);
            __builtin_prefetch(at + i + 4224, 0, 2), __builtin_prefetch(at + i + 4288, 0, 2);
            for (int j = 0; j < 256; j += 64) seen = _mm512_xor_si512(seen, load(at + i + j));
        }
        __asm__ volatile("" : : "v"(seen));
    }
};

}  // namespace

const strata::KernelSet strata::kAvx512VnniKernels = make_kernels<Ops512>();
