// The quantisers: activations to E4M3 with an FP32 or a UE8M0 scale, weights to MXFP4.
// All are meant for builds with contraction off; the operations and their order are the definition.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/nan_math.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::numerics {

// A group's largest magnitude is raised to this before the scale is formed: a group of zeros gets
// a finite scale and a finite inverse.
inline constexpr float kAmaxFloor = 1e-4F;
inline constexpr float kE4m3Max = 448.0F;
inline constexpr int kMxfp4Group = 32;  // values that share one UE8M0 scale

// The largest magnitude of values[0, n); NaN if any is NaN; 0 for n = 0.
GCMOE_HD constexpr float group_amax(const float* values, int n) {
    float amax = 0.0F;
    for (int i = 0; i < n; ++i) amax = max_nan(amax, abs(values[i]));
    return amax;
}

// The FP32 scale that a group of this largest magnitude is stored with.
GCMOE_HD constexpr float fp32_scale(float amax) { return max_nan(amax, kAmaxFloor) / kE4m3Max; }

// What values are multiplied by before the cast. Not 1 / fp32_scale: one rounding, not two.
GCMOE_HD constexpr float fp32_inverse_scale(float amax) {
    return kE4m3Max / max_nan(amax, kAmaxFloor);
}

// amax / 448 rounded up to a power of two, as a code in 1..254 (NaN and infinity: 254).
GCMOE_HD constexpr std::uint8_t ue8m0_scale_code(float amax) {
    return ue8m0_ceil(max_nan(amax, kAmaxFloor) / kE4m3Max);
}

// The exact inverse 2^(127 - code) of a scale code in 0..254.
GCMOE_HD constexpr float ue8m0_inverse(std::uint8_t code) {
    return ue8m0_to_float(static_cast<std::uint8_t>(254 - code));
}

// One group of n values to n E4M3 codes and one FP32 scale; a value is about code * scale.
// A NaN value gives a NaN code and a NaN scale.
GCMOE_HD constexpr void quantise_e4m3_fp32(const float* values, int n, std::uint8_t* codes,
                                           float* scale) {
    const float amax = group_amax(values, n);
    const float inverse = fp32_inverse_scale(amax);
    *scale = fp32_scale(amax);
    for (int i = 0; i < n; ++i) codes[i] = e4m3_from_float(values[i] * inverse);
}

// One group of n values to n E4M3 codes and one UE8M0 code in 1..254. A NaN value gives a NaN code.
GCMOE_HD constexpr void quantise_e4m3_ue8m0(const float* values, int n, std::uint8_t* codes,
                                            std::uint8_t* scale_code) {
    *scale_code = ue8m0_scale_code(group_amax(values, n));
    const float inverse = ue8m0_inverse(*scale_code);
    for (int i = 0; i < n; ++i) codes[i] = e4m3_from_float(values[i] * inverse);
}

// 32 values to 16 bytes of E2M1 (even index in the low nibble) and one UE8M0 code in 1..254:
// scale = amax / 6 rounded up to a power of two. For tests and tools.
GCMOE_HD constexpr void quantise_mxfp4(const float* values, std::uint8_t* nibble_bytes,
                                       std::uint8_t* scale_code) {
    *scale_code = ue8m0_ceil(max_nan(group_amax(values, kMxfp4Group), kAmaxFloor) / kE2m1Max);
    const float inverse = ue8m0_inverse(*scale_code);
    for (int i = 0; i < kMxfp4Group; i += 2) {
        const unsigned low = e2m1_from_float(values[i] * inverse);
        const unsigned high = e2m1_from_float(values[i + 1] * inverse);
        nibble_bytes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
    }
}

}  // namespace gcmoe::numerics
