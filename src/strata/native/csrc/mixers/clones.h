// How functions of the mixers are compiled for several instruction sets. Knows none of them.
#pragma once

// Kernels are compiled for each of these and chosen when the library is loaded. A sanitizer starts later than that
// choice, so its builds take the plain one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STRATA_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define STRATA_CLONES
#endif

#define STRATA_INLINE inline __attribute__((always_inline))
