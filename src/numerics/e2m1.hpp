// E2M1 (FP4): sign, 2 exponent bits of bias 1, 1 mantissa bit. Values 0 .5 1 1.5 2 3 4 6 and their
// negatives; no infinity, no NaN. A code stands in the low four bits of a byte.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

inline constexpr float kE2m1Max = 6.0F;

// The exact value of a code (low four bits; the rest is ignored). Code 8 is negative zero.
GCMOE_HD constexpr float e2m1_to_float(std::uint8_t nibble) {
    const std::uint32_t sign = (nibble & 8U) << 28;
    const std::uint32_t magnitude = nibble & 7U;
    if (magnitude == 0) return bits_to_float(sign);
    if (magnitude == 1) return bits_to_float(sign | 0x3F000000U);  // 0.5, the subnormal
    return bits_to_float(sign | ((magnitude << 22) + ((127U - 1U) << 23)));
}

// Rounds to nearest, ties to the smaller magnitude; saturates at 6; never gives negative zero.
// NaN has no code: it saturates to +6, callers that care look at the group's maximum.
GCMOE_HD constexpr std::uint8_t e2m1_from_float(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const std::uint32_t magnitude_bits = bits & kFloatMagnitudeMask;
    if (magnitude_bits > kFloatInfinityBits) return 7;
    const float magnitude = bits_to_float(magnitude_bits);
    const int code = (magnitude > 0.25F) + (magnitude > 0.75F) + (magnitude > 1.25F) +
                     (magnitude > 1.75F) + (magnitude > 2.5F) + (magnitude > 3.5F) +
                     (magnitude > 5.0F);
    const int sign = (bits >> 31) != 0 && code != 0 ? 8 : 0;
    return static_cast<std::uint8_t>(sign | code);
}

}  // namespace gcmoe::numerics
