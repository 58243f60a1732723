// The bits of a float, seen as an integer and back.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::numerics {

// The builtin behind std::bit_cast: unlike the library function, nvcc accepts it in device code.
GCMOE_HD constexpr float bits_to_float(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

GCMOE_HD constexpr std::uint32_t float_to_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}

inline constexpr std::uint32_t kFloatSignBit = 0x80000000U;
inline constexpr std::uint32_t kFloatMagnitudeMask = 0x7FFFFFFFU;
inline constexpr std::uint32_t kFloatInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kFloatQuietNanBits = 0x7FC00000U;

// Exactly 2^exponent, for exponent in -126..127.
GCMOE_HD constexpr float power_of_two(int exponent) {
    return bits_to_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace gcmoe::numerics
