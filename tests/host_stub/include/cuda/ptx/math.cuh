// Stand-in for src/cuda/ptx/math.cuh: single instructions by their definition in the PTX manual.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "host_stub/words.hpp"
#include "numerics/nan_math.hpp"

namespace gcmoe::cuda::ptx {

// prmt.b32 in its default mode.
inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
    const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
    std::uint32_t result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t nibble = selector >> (4 * i) & 0xFU;
        auto byte = static_cast<std::uint32_t>(bytes >> (8 * (nibble & 7U)) & 0xFFU);
        if ((nibble & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xFFU : 0x00U;
        result |= byte << (8 * i);
    }
    return result;
}

inline std::uint32_t count_bits(std::uint32_t bits) {
    return static_cast<std::uint32_t>(std::popcount(bits));
}
inline std::uint32_t first_bit(std::uint32_t bits) {
    return static_cast<std::uint32_t>(std::countr_zero(bits));
}

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float min_nan(float a, float b) { return numerics::min_nan(a, b); }
inline float max_nan(float a, float b) { return numerics::max_nan(a, b); }
inline float exp(float x) { return std::exp(x); }
inline float reciprocal(float x) { return 1.0F / x; }

// `magnitude` (finite) in steps of a format with `mantissa` bits below the leading one and the
// smallest exponent `lowest`: nearest, ties to even. Exact: FP64 holds every quotient.
struct HostSteps {
    int exponent;  // of the leading one; `lowest` for subnormals
    int steps;     // of 2^(exponent - mantissa)
};
inline HostSteps host_round(double magnitude, int mantissa, int lowest) {
    int exponent = lowest;
    if (magnitude != 0.0) {
        std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
        exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    }
    const double steps = std::ldexp(magnitude, mantissa - exponent);
    return {exponent, static_cast<int>(std::nearbyint(steps))};
}

// cvt.rn.satfinite.e4m3x2.f32: one half. Infinity saturates too; NaN loses its sign.
inline std::uint32_t host_e4m3(float value) {
    if (std::isnan(value)) return 0x7F;
    const std::uint32_t sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude >= 448.0) return sign | 0x7E;
    const HostSteps rounded = host_round(magnitude, 3, -6);
    // 8 to 15 steps are an octave; 16 are the first of the next one.
    return sign | static_cast<std::uint32_t>(8 * (rounded.exponent + 6) + rounded.steps);
}
inline std::uint32_t e4m3_pair(float low, float high) {
    return host_e4m3(low) | host_e4m3(high) << 8;
}

// cvt.rn.bf16x2.f32: one half. Subnormals stay, overflow gives infinity, NaN loses sign and bits.
inline std::uint32_t host_bf16(float value) {
    if (std::isnan(value)) return 0x7FFF;
    const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isinf(value)) return sign | 0x7F80;
    const HostSteps rounded = host_round(std::fabs(static_cast<double>(value)), 7, -126);
    return sign | static_cast<std::uint32_t>(128 * (rounded.exponent + 126) + rounded.steps);
}
inline std::uint32_t bf16_pair(float low, float high) {
    return host_bf16(low) | host_bf16(high) << 16;
}

inline std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return (a & b) | c;
}

}  // namespace gcmoe::cuda::ptx
