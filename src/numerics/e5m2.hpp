// E5M2 (FP8): sign, 5 exponent bits of bias 15, 2 mantissa bits. Largest 57344, infinity 0x7C, NaN
// 0x7D..0x7F, smallest step 2^-16. The upper byte of an IEEE half.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

// The exact value of a code; a NaN code gives a quiet NaN of the same sign.
GCMOE_HD constexpr float e5m2_to_float(std::uint8_t code) {
    const std::uint32_t sign = (code & 0x80U) << 24;
    const std::uint32_t magnitude = code & 0x7FU;
    if (magnitude > 0x7CU) return bits_to_float(sign | kFloatQuietNanBits);
    if (magnitude == 0x7CU) return bits_to_float(sign | kFloatInfinityBits);
    if (magnitude < 4) {  // subnormal: a multiple of 2^-16
        const float value = static_cast<float>(magnitude) * power_of_two(-16);
        return bits_to_float(sign | float_to_bits(value));
    }
    return bits_to_float(sign | ((magnitude << 21) + ((127U - 15U) << 23)));
}

// Rounds to nearest even; saturates to 57344, infinity too; NaN gives 0x7F with the sign kept.
GCMOE_HD constexpr std::uint8_t e5m2_from_float(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const std::uint32_t sign = (bits >> 24) & 0x80U;
    const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
    if (magnitude > kFloatInfinityBits) return static_cast<std::uint8_t>(sign | 0x7FU);
    if (magnitude >= 0x47600000U) return static_cast<std::uint8_t>(sign | 0x7BU);  // >= 57344
    if (magnitude < 0x38800000U) {
        // Below 2^-14. A float in [2^7, 2^8) has a step of 2^-16: the addition rounds to it.
        const float shifted = bits_to_float(magnitude) + power_of_two(7);
        return static_cast<std::uint8_t>(sign | (float_to_bits(shifted) & 0x7U));
    }
    const std::uint32_t rounded = magnitude + 0xFFFFFU + ((magnitude >> 21) & 1U);
    return static_cast<std::uint8_t>(sign | ((rounded >> 21) - ((127U - 15U) << 2)));
}

}  // namespace gcmoe::numerics
