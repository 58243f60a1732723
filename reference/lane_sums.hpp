// The CPU backend's FP32 sums, one multiplication and one addition at a time: the definition of
// their order, and the scalar form that `./dev bench cpu` measures SIMD against.
#pragma once

#include "layout/packed_weights.hpp"

namespace gcmoe::reference {

// Activation rows in natural K order.
struct LaneInputs {
    const float* values = nullptr;  // (num_rows, 128 * chunks) the codes as floats
    const float* scales = nullptr;  // (num_rows, 4 * chunks) by K32 group
    int num_rows = 0;
    int chunks = 0;
};

// sums (inputs.num_rows, num_rows): packed rows first_row .. first_row + num_rows - 1 times all
// activation rows, in the order that src/cpu/gemm_rows.hpp gives.
void lane_sums(const layout::PackedMatrix& matrix, int first_row, int num_rows,
               const LaneInputs& inputs, float* sums);
void lane_sums(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
               const LaneInputs& inputs, float* sums);

}  // namespace gcmoe::reference
