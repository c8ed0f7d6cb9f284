// Small number formats to float32, one value at a time, exactly. Knows no matrix.
// Everything is private to the file that includes it: files of different instruction sets share no function.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, mantissa = half & 0x3ff;
    const uint32_t exponent = half >> 10 & 31;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -tiny : tiny;
}

inline float float_of_bf16(uint16_t value) { return float_of_bits(static_cast<uint32_t>(value) << 16); }

// 2^(e - 127); e = 0 is a denormal.
inline float float_of_e8m0(uint8_t e) { return float_of_bits(e == 0 ? 0x00400000u : static_cast<uint32_t>(e) << 23); }

// float8_e4m3fn: a half with the same bits is 2^-8 of it, denormals included; 0x7f and 0xff are NaN.
inline float float_of_e4m3(uint8_t value) {
    if ((value & 0x7f) == 0x7f) return float_of_bits(0x7fc00000u);
    return float_of_half(static_cast<uint16_t>((value & 0x80) << 8 | (value & 0x7f) << 7)) * 256.0f;
}

}  // namespace
