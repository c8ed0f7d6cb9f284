// How a failure reaches the caller of the C ABI: a code, and a sentence kept for the calling thread.
// Knows no function that fails.
#pragma once

#include "strata_native.h"

namespace strata {

// Keeps the sentence (printf's rules) and returns the code.
int32_t fail(int32_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Runs `body` (returning a code) and turns what it throws into a code: nothing may leave through the C ABI.
template <class F>
int32_t guarded(F &&body) noexcept {
    try {
        return body();
    } catch (...) {
        return fail(STRATA_NO_MEMORY, "out of memory, or the system gives no more threads");
    }
}

}  // namespace strata
