// E4M3 (FP8, finite): sign, 4 exponent bits of bias 7, 3 mantissa bits. Largest 448, no infinity,
// NaN is 0x7F and 0xFF, smallest step 2^-9.
#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

inline constexpr std::uint8_t kE4m3NanMagnitude = 0x7F;

// True for the two NaN codes.
GCMOE_HD constexpr bool e4m3_is_nan(std::uint8_t code) {
    return (code & 0x7FU) == kE4m3NanMagnitude;
}

// The exact value of a code; a NaN code gives a quiet NaN of the same sign.
GCMOE_HD constexpr float e4m3_to_float(std::uint8_t code) {
    const std::uint32_t sign = (code & 0x80U) << 24;
    const std::uint32_t magnitude = code & 0x7FU;
    if (magnitude == kE4m3NanMagnitude) return bits_to_float(sign | kFloatQuietNanBits);
    if (magnitude < 8) {  // subnormal: a multiple of 2^-9
        const float value = static_cast<float>(magnitude) * power_of_two(-9);
        return bits_to_float(sign | float_to_bits(value));
    }
    return bits_to_float(sign | ((magnitude << 20) + ((127U - 7U) << 23)));
}

// Rounds to nearest even; saturates to 448, infinity too; NaN gives 0x7F with the sign kept.
GCMOE_HD constexpr std::uint8_t e4m3_from_float(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const std::uint32_t sign = (bits >> 24) & 0x80U;
    const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
    if (magnitude > kFloatInfinityBits) return static_cast<std::uint8_t>(sign | 0x7FU);
    if (magnitude >= 0x43E00000U) return static_cast<std::uint8_t>(sign | 0x7EU);  // >= 448
    if (magnitude < 0x3C800000U) {
        // Below 2^-6. A float in [2^14, 2^15) has a step of 2^-9: the addition rounds to it.
        const float shifted = bits_to_float(magnitude) + power_of_two(14);
        return static_cast<std::uint8_t>(sign | (float_to_bits(shifted) & 0xFU));
    }
    const std::uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
    return static_cast<std::uint8_t>(sign | ((rounded >> 20) - ((127U - 7U) << 3)));
}

constexpr std::array<float, 256> make_e4m3_table() {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) {
        table[static_cast<std::size_t>(code)] = e4m3_to_float(static_cast<std::uint8_t>(code));
    }
    return table;
}

// Host only: e4m3_to_float of every code, for loops that decode many.
inline constexpr std::array<float, 256> kE4m3Values = make_e4m3_table();

}  // namespace gcmoe::numerics
