// Single instructions of the decode and the epilogues.
#pragma once

#include <cstdint>

namespace gcmoe::cuda::ptx {

// Byte i of the result = byte (selector nibble i, i = 0..3) of {high, low}; bit 3 of a nibble
// replicates the sign. Not the intrinsic: it masks the selector with 0x7777 first.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high,
                                                       std::uint32_t selector) {
    std::uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
}

__device__ __forceinline__ std::uint32_t count_bits(std::uint32_t bits) {
    return static_cast<std::uint32_t>(__popc(static_cast<int>(bits)));
}
// Index of the lowest set bit; bits is not 0.
__device__ __forceinline__ std::uint32_t first_bit(std::uint32_t bits) {
    return static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1;
}

// a * b + c with one rounding, whatever the compiler is told about contraction.
__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// The smaller and the larger value; NaN if either is NaN.
__device__ __forceinline__ float min_nan(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
__device__ __forceinline__ float max_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

// e^x by the hardware's exp2: off by 2^-22 of the value and |x| 2^-24 of it; below 2^-126 it is 0.
__device__ __forceinline__ float exp(float x) {
    constexpr float kLog2E = 1.44269504F;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2E));
    return result;
}
// 1 / x, off by 1 in the last place at most; 0 where x is above 2^126.
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Two values to E4M3 codes (low in bits 0..7), nearest even, saturated; NaN gives 0x7F.
__device__ __forceinline__ std::uint32_t e4m3_pair(float low, float high) {
    std::uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two values to BF16 (low in bits 0..15), nearest even; NaN gives 0x7FFF.
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// (a & b) | c
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

}  // namespace gcmoe::cuda::ptx
