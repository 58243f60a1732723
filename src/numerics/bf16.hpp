// BF16: the upper half of a float.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

GCMOE_HD constexpr float bf16_to_float(std::uint16_t bits) {
    return bits_to_float(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest even, overflow to infinity; NaN stays a NaN of the same sign, made quiet.
GCMOE_HD constexpr std::uint16_t bf16_from_float(float value) {
    const std::uint32_t bits = float_to_bits(value);
    if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) {
        return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
    }
    return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace gcmoe::numerics
