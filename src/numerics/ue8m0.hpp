// UE8M0: a power of two in eight bits. Code c is 2^(c - 127), code 255 is NaN.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

inline constexpr std::uint8_t kUe8m0Nan = 255;

// The exact value of a code. Code 0 is 2^-127, a subnormal float.
GCMOE_HD constexpr float ue8m0_to_float(std::uint8_t code) {
    if (code == kUe8m0Nan) return bits_to_float(kFloatQuietNanBits);
    if (code == 0) return bits_to_float(0x00400000U);
    return bits_to_float(static_cast<std::uint32_t>(code) << 23);
}

// The code of the smallest power of two >= value, kept in 1..254: zero, negative and tiny values
// give 1; values above 2^127, infinity and NaN give 254.
GCMOE_HD constexpr std::uint8_t ue8m0_ceil(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const bool is_nan = (bits & kFloatMagnitudeMask) > kFloatInfinityBits;
    if ((bits & kFloatSignBit) != 0 && !is_nan) return 1;
    const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
    const std::uint32_t code = (magnitude >> 23) + ((magnitude & 0x007FFFFFU) != 0 ? 1U : 0U);
    if (code < 1) return 1;
    return static_cast<std::uint8_t>(code > 254 ? 254 : code);
}

// Writes the code of a value that is exactly a power of two in 2^-127..2^127 and returns true.
// Anything else (a mantissa, <= 0, infinity, NaN, below 2^-127) returns false and writes nothing.
GCMOE_HD constexpr bool ue8m0_exact(float value, std::uint8_t* code) {
    const std::uint32_t bits = float_to_bits(value);
    if (bits == 0x00400000U) {  // 2^-127
        *code = 0;
        return true;
    }
    const std::uint32_t exponent = bits >> 23;  // the sign bit makes it 256 or more
    if ((bits & 0x007FFFFFU) != 0 || exponent < 1 || exponent > 254) return false;
    *code = static_cast<std::uint8_t>(exponent);
    return true;
}

}  // namespace gcmoe::numerics
