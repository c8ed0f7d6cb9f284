// The AVX-VNNI path: weights are biased by 128 to become unsigned, the sum starts at -128 times the sum of q.
// Knows no thread.
#include "simd/ops_256.h"

#include "simd/kernel_set.h"

namespace {

struct DotAvxVnni {
    static constexpr int32_t kBias = 128;
    static constexpr bool kTakesAnyByte = true;
    static constexpr int kPackedGroup = 4;
    using Weight = __m256i;
    static Weight weight(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
    static __m256i from_signed(__m256i w) { return _mm256_xor_si256(w, _mm256_set1_epi8(-128)); }
    static __m256i dot(__m256i sum, __m256i w, __m256i q) { return _mm256_dpbusd_avx_epi32(sum, w, q); }
};

}  // namespace

const strata::KernelSet strata::kAvxVnniKernels = make_kernels<Ops256<DotAvxVnni>>();
