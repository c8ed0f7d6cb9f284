// The floating-point mode that every result is computed in, for as long as an object of it lives.
// Knows no computation.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace strata {

// Round to nearest, denormals kept, exceptions masked. Restores what the thread had before.
class Rounding {
public:
#if defined(__x86_64__)
    Rounding() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~Rounding() { _mm_setcsr(before_); }

private:
    uint32_t before_;

public:
#else
    Rounding() = default;
    ~Rounding() {}
#endif
    Rounding(const Rounding &) = delete;
    Rounding &operator=(const Rounding &) = delete;
};

}  // namespace strata
