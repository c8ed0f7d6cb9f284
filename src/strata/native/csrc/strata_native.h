// The C ABI of the native library: every function that Python calls is declared here.
// Knows no Python and no torch; sizes are in bytes, pointers are owned by the caller.
#pragma once

#include <cstdint>

#define STRATA_API extern "C" __attribute__((visibility("default")))

// Rises with every change that an older caller would not survive.
STRATA_API int32_t strata_native_abi_version();

// What this CPU can do and the system lets us use, as bits (see cpu_features.cpp).
STRATA_API uint64_t strata_cpu_features();
