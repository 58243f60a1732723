// Kernels that write checkpoint bytes of generated matrices: one thread per K32 group of a routed
// matrix (about 70 integer instructions a weight decide, not memory), one warp per scale of a
// shared one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/math.hpp"
#include "checkpoint/generated_element.hpp"
#include "checkpoint/padded_source.hpp"
#include "layout/pack_row.hpp"

namespace gcmoe::cuda::weights {

inline constexpr unsigned kGenerateThreads = 256;

// One routed matrix; what lies beyond (matrix.rows, matrix.cols) is padding.
struct RoutedJob {
    checkpoint::ScaleRule rule;
    checkpoint::GeneratedMatrix matrix;
    int rows = 0;  // padded
    int cols = 0;
    std::uint8_t* nibbles = nullptr;  // (rows, cols / 2)
    std::uint8_t* scales = nullptr;   // (rows, cols / 32)
};

__global__ void __launch_bounds__(kGenerateThreads) generate_routed(RoutedJob job) {
    const int num_groups = job.cols / numerics::kMxfp4Group;
    const std::int64_t idx = std::int64_t{blockIdx.x} * kGenerateThreads + threadIdx.x;
    if (idx >= std::int64_t{job.rows} * num_groups) return;
    const int row = static_cast<int>(idx / num_groups);
    const int group_idx = static_cast<int>(idx % num_groups);
    alignas(16) std::uint8_t nibbles[numerics::kMxfp4Group / 2] = {};
    std::uint8_t code = checkpoint::kPadScaleCode;
    if (row < job.matrix.rows && group_idx * numerics::kMxfp4Group < job.matrix.cols) {
        checkpoint::generate_mxfp4_group(job.rule, job.matrix, row, group_idx, nibbles, &code);
    }
    reinterpret_cast<uint4*>(job.nibbles)[idx] = *reinterpret_cast<const uint4*>(nibbles);
    job.scales[idx] = code;
}

// One shared matrix.
struct SharedJob {
    checkpoint::GeneratedMatrix matrix;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    int rows = 0;  // padded
    int cols = 0;
    std::uint8_t* codes = nullptr;  // (rows, cols)
    void* scales = nullptr;         // the grid's, of the padded matrix
};

__device__ inline bool is_live(const SharedJob& job, int row, int col) {
    return row < job.matrix.rows && col < job.matrix.cols;
}

// The largest magnitude of the live weights of a block, by a whole warp; 0 without any.
__device__ inline float block_amax(const SharedJob& job, const layout::GridSteps& steps,
                                   int first_row, int first_col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float amax = 0.0F;
    for (int row = first_row; row < first_row + steps.rows_per_scale; ++row) {
        for (int col = first_col + lane; col < first_col + steps.cols_per_scale; col += 32) {
            if (!is_live(job, row, col)) continue;
            const float weight = checkpoint::generated_weight(job.matrix, row, col);
            amax = numerics::max_nan(amax, numerics::abs(weight));
        }
    }
    // Floats that are not negative order as their bits do.
    return numerics::bits_to_float(__reduce_max_sync(~0U, numerics::float_to_bits(amax)));
}

__device__ inline void store_block_scale(const SharedJob& job, std::int64_t entry, bool live,
                                         float amax) {
    if (job.grid == ScaleGrid::kFp32Block128) {
        static_cast<float*>(job.scales)[entry] =
            live ? numerics::fp32_scale(amax) : checkpoint::kPadScale;
    } else {
        static_cast<std::uint8_t*>(job.scales)[entry] =
            live ? numerics::ue8m0_scale_code(amax) : checkpoint::kPadScaleCode;
    }
}

__global__ void __launch_bounds__(kGenerateThreads) generate_shared(SharedJob job) {
    const layout::GridSteps steps = layout::grid_steps(job.grid);
    const int grid_rows = ceil_div(job.rows, steps.rows_per_scale);
    const int grid_cols = ceil_div(job.cols, steps.cols_per_scale);
    const std::int64_t entry = (std::int64_t{blockIdx.x} * kGenerateThreads + threadIdx.x) / 32;
    if (entry >= std::int64_t{grid_rows} * grid_cols) return;
    const int first_row = static_cast<int>(entry / grid_cols) * steps.rows_per_scale;
    const int first_col = static_cast<int>(entry % grid_cols) * steps.cols_per_scale;
    const float amax = block_amax(job, steps, first_row, first_col);
    const float inverse = checkpoint::shared_inverse_scale(job.grid, amax);
    const int end_row = min(first_row + steps.rows_per_scale, job.rows);
    const int end_col = min(first_col + steps.cols_per_scale, job.cols);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int row = first_row; row < end_row; ++row) {
        for (int col = first_col + lane; col < end_col; col += 32) {
            std::uint8_t code = 0;
            if (is_live(job, row, col)) {
                code = numerics::e4m3_from_float(
                    checkpoint::generated_weight(job.matrix, row, col) * inverse);
            }
            job.codes[std::int64_t{row} * job.cols + col] = code;
        }
    }
    if (lane == 0) store_block_scale(job, entry, is_live(job, first_row, first_col), amax);
}

// The bias of one matrix: zeros past the live rows.
__global__ void __launch_bounds__(kGenerateThreads)
    generate_bias(std::uint64_t seed, int live_rows, int rows, float* bias) {
    const int row = static_cast<int>(blockIdx.x * kGenerateThreads + threadIdx.x);
    if (row >= rows) return;
    bias[row] = row < live_rows ? checkpoint::generated_bias(seed, row) : 0.0F;
}

}  // namespace gcmoe::cuda::weights
