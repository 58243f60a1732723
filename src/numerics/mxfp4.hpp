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

// A magnitude on E2M1's grid, by one addition: floats near addend stand a step of the grid apart
// (0.5 below 2, 1 below 4, else 2), and an even code is an even number of steps. Integer and float
// arithmetic without branches, so that compilers make vectors of it.
struct E2m1Step {
    float sum;     // magnitude + addend, rounded to nearest even
    float addend;  // 1.5 * 2^22 steps of 0.5, 1 or 2
    int octave;    // 0, 1, 2

    GCMOE_HD constexpr explicit E2m1Step(float value) : sum(0.0F), addend(0.0F), octave(0) {
        constexpr float kLargest = 8.0F;  // rounds to 6 like all above it
        const float full = bits_to_float(float_to_bits(value) & kFloatMagnitudeMask);
        const float magnitude = full < kLargest ? full : kLargest;
        const int exponent = static_cast<int>(float_to_bits(magnitude) >> 23) - 127;
        octave = exponent > 0 ? exponent : 0;
        octave = octave < 2 ? octave : 2;
        addend = bits_to_float(0x4AC00000U + (static_cast<std::uint32_t>(octave) << 23));
        sum = magnitude + addend;
    }
};

// Rounds to nearest, ties to the even code; saturates at 6; never gives negative zero. Callers: not
// NaN; the machine rounds to nearest even.
GCMOE_HD constexpr std::uint8_t e2m1_nearest_even(float value) {
    const E2m1Step step(value);
    const int steps = static_cast<int>(float_to_bits(step.sum) - float_to_bits(step.addend));
    const int full = steps + 2 * step.octave;
    const int code = full < 7 ? full : 7;
    const int sign = (float_to_bits(value) >> 31) != 0 && code != 0 ? 8 : 0;
    return static_cast<std::uint8_t>(sign | code);
}

// The magnitude of what e2m1_nearest_even rounds to.
GCMOE_HD constexpr float e2m1_round_magnitude(float value) {
    const E2m1Step step(value);
    const float rounded = step.sum - step.addend;
    return rounded < kE2m1Max ? rounded : kE2m1Max;
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
    constexpr int kSums = 4;
    const float inverse = ue8m0_inverse(code);
    double sums[kSums] = {};
    for (int i = 0; i < kMxfp4Group; i += kSums) {
        for (int lane = 0; lane < kSums; ++lane) {
            const float scaled =
                bits_to_float(float_to_bits(values[i + lane] * inverse) & kFloatMagnitudeMask);
            const float error = scaled - e2m1_round_magnitude(scaled);
            sums[lane] += static_cast<double>(error) * static_cast<double>(error);
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
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
