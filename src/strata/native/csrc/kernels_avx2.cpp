// The AVX2 path: no instruction multiplies u8 by s8 into 32 bits, so |w| is multiplied by q with the sign of w.
// Knows no thread.
#include "simd/ops_256.h"

#include "simd/kernel_set.h"

namespace {

// |w| <= 128 and |q| <= 127: a pair is at most 32,512 and maddubs does not saturate.
struct DotAvx2 {
    static constexpr int32_t kBias = 0;
    static constexpr bool kTakesAnyByte = false;  // 240 * 127 * 2 would saturate
    static constexpr int kPackedGroup = 2;
    // A weight that several rows are multiplied with.
    struct Weight {
        __m256i value, size;
    };
    static Weight weight(const void *at) {
        const __m256i value = _mm256_loadu_si256(static_cast<const __m256i *>(at));
        return {value, _mm256_abs_epi8(value)};
    }
    static __m256i dot(__m256i sum, Weight w, __m256i q) {
        const __m256i pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(q, w.value));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static __m256i from_signed(__m256i w) { return w; }
    static __m256i dot(__m256i sum, __m256i w, __m256i q) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
};

}  // namespace

const strata::KernelSet strata::kAvx2Kernels = make_kernels<Ops256<DotAvx2>>();
