// The arithmetic of the CPU backend: rows of packed weights times rows of FP8 activations, in FP32.
//
// Bits do not depend on anything but the operands of one output element: 16 lanes over K, a fixed
// tree over the lanes, groups of K in order. Vector types have 16 lanes whatever the machine's SIMD
// width is.
#pragma once

#include <cstdint>

#include "cpu/cpu_launch.hpp"

namespace gcmoe::cpu {

// Decoded activation rows of one task. A value is values * scale of its group.
struct ActivationRows {
    const float* values = nullptr;  // (num_rows, 128 * chunks) the codes as floats, natural K order
    const float* scales = nullptr;  // (num_rows, chunks * groups_per_chunk)
    int num_rows = 0;
    int chunks = 0;
    int groups_per_chunk = 1;  // 1: a scale per K128, 4: per K32
};

// sums[row][t] for packed rows [first_row, first_row + num_rows) of a routed matrix and all
// activation rows t. num_rows is a multiple of 64. No bias.
void multiply_fp4(const layout::PackedMatrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums);

// The same for the shared expert's FP8 weights.
void multiply_fp8(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums);

// Appends the scales of one scale word: a float, or four UE8M0 codes (group 0 in the low byte).
void decode_scale_word(std::uint32_t word, int groups_per_chunk, float* scales);

// 128 columns of one row to E4M3 codes (natural order) and one scale word.
void requantise_row(const float* values, ActivationScale format, std::uint8_t* codes,
                    std::uint32_t* scale_word);

// codes[n] to floats.
void decode_codes(const std::uint8_t* codes, int n, float* values);

}  // namespace gcmoe::cpu
