// What the CPU backend does to rows of FP32 between and after the GEMMs, with the widest SIMD that
// the machine has. Element by element and without fused operations: bits do not depend on the width
// of its vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gcmoe/shape.hpp"

namespace gcmoe::cpu {

// One row of a first-GEMM task.
struct GatedRow {
    const float* sums = nullptr;  // (256) gate and up of 128 columns, in packed row order
    const float* bias = nullptr;  // (256) in the same order, may be null
    float weight = 1.0F;          // multiplied in last
};

// 128 columns of numerics::swiglu times weight. exp() is this file's own (1.5 units of the last
// place): a machine's libm does not decide bits. A NaN is always 0x7FC00000.
void activate_row(const GatedRow& row, const Activation& activation, float* activated);

// 128 columns of one row to E4M3 codes (natural order) and one scale word: a float, or four UE8M0
// codes with group 0 in the low byte. As numerics/quantise.hpp defines it.
void requantise_row(const float* values, ActivationScale format, std::uint8_t* codes,
                    std::uint32_t* scale_word);

// How a second-GEMM result becomes a combine row.
struct RowScale {
    const float* bias = nullptr;  // may be null
    float weight = 1.0F;
    bool weighs_sum = false;  // weight * (sum + bias), else sum + weight * bias
};

// n values to BF16, n a multiple of 16 here and below. A NaN is always 0x7FC0.
void store_result_row(const float* sums, const RowScale& scale, std::size_t n, std::uint16_t* out);

// sum[i] += row[i].
void add_bf16_row(const std::uint16_t* row, std::size_t n, float* sum);

// One rounding to nearest even each.
void round_to_bf16(const float* values, std::size_t n, std::uint16_t* out);

}  // namespace gcmoe::cpu
