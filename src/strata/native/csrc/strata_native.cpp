// The library's version, by which Python refuses a build that does not fit it.
// Knows nothing of what the other files compute.
#include "strata_native.h"

int32_t strata_native_abi_version() { return 9; }
