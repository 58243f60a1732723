// From wide weights to MXFP4: the quantiser of `gcmoe pack --quantize mxfp4`. (quantise_mxfp4 of
// quantise.hpp makes the generated layers, and stays what it is for their sake.)
//
// A group of 32 values shares a power of two. The OCP specification takes 2^(floor(log2(amax)) - 2)
// so that the largest value lands in 4..8, where what is above 6 saturates. One octave more never
// saturates and rounds twice as coarsely. Neither is best for all groups: this quantiser rounds
// with both and keeps the one with the smaller sum of squared errors, the smaller scale if they are
// equal. docs/checkpoints.md has the errors of the three rules side by side.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::numerics {

// Rounds to nearest, ties to the even code; saturates at 6; never gives negative zero. Callers: not
// NaN.
GCMOE_HD constexpr std::uint8_t e2m1_nearest_even(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const float magnitude = bits_to_float(bits & kFloatMagnitudeMask);
    const int code = (magnitude > 0.25F) + (magnitude >= 0.75F) + (magnitude > 1.25F) +
                     (magnitude >= 1.75F) + (magnitude > 2.5F) + (magnitude >= 3.5F) +
                     (magnitude > 5.0F);
    const int sign = (bits >> 31) != 0 && code != 0 ? 8 : 0;
    return static_cast<std::uint8_t>(sign | code);
}

// The OCP scale code floor(log2(amax)) - 2 + 127, at least 0: 0..252.
GCMOE_HD constexpr std::uint8_t mxfp4_floor_code(float amax) {
    constexpr int kMaxExponent = 2;                                    // of E2M1: 4..6
    const int exponent = static_cast<int>(float_to_bits(amax) >> 23);  // 0: subnormal or zero
    const int code = exponent - kMaxExponent;
    return static_cast<std::uint8_t>(code < 0 ? 0 : code);
}

// value / 2^(code - 127), exactly unless it leaves the range of float. Callers: code 0..254.
GCMOE_HD constexpr float divide_by_scale(float value, std::uint8_t code) {
    return value * ue8m0_inverse(code);
}

// The squared error of rounding a group with a scale code, in units of the square of the scale.
GCMOE_HD constexpr double mxfp4_group_error(const float* values, std::uint8_t code) {
    double sum = 0.0;
    for (int i = 0; i < kMxfp4Group; ++i) {
        const float scaled = divide_by_scale(values[i], code);
        const double error = static_cast<double>(scaled) -
                             static_cast<double>(e2m1_to_float(e2m1_nearest_even(scaled)));
        sum += error * error;
    }
    return sum;
}

// The scale code of 32 finite values: the OCP code or the next, see the head of this file.
GCMOE_HD constexpr std::uint8_t mxfp4_scale_code(const float* values) {
    const std::uint8_t code = mxfp4_floor_code(group_amax(values, kMxfp4Group));
    const auto next = static_cast<std::uint8_t>(code + 1);  // at most 253
    // The next scale is twice as large, its unit four times.
    return mxfp4_group_error(values, code) <= 4.0 * mxfp4_group_error(values, next) ? code : next;
}

// 32 finite values to 16 bytes of E2M1 (even index in the low nibble) and one UE8M0 code in 0..254.
GCMOE_HD constexpr void quantise_mxfp4_group(const float* values, std::uint8_t* nibble_bytes,
                                             std::uint8_t* scale_code) {
    *scale_code = mxfp4_scale_code(values);
    for (int i = 0; i < kMxfp4Group; i += 2) {
        const unsigned low = e2m1_nearest_even(divide_by_scale(values[i], *scale_code));
        const unsigned high = e2m1_nearest_even(divide_by_scale(values[i + 1], *scale_code));
        nibble_bytes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
    }
}

}  // namespace gcmoe::numerics
