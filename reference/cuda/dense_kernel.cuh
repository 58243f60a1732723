// FP64 GEMMs over checkpoint bytes, all batches of a layer in one launch. Plain: a CTA makes 64
// columns of up to kRows rows of one batch, K in steps of 16 through shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "reference/element.hpp"

namespace gcmoe::reference {

inline constexpr int kDotThreads = 256;  // 16 x 16
inline constexpr int kDotColumns = 64;   // of a CTA
inline constexpr int kDotStep = 16;      // of K
inline constexpr int kFewRows = 16;      // rows of a CTA where batches are small
inline constexpr int kManyRows = 64;

// Rows of the left operand: codes and scales, or numbers.
struct CodedRows {
    const CodedRow* rows;  // (rows)
    __device__ double at(int row, int k) const { return coded_value(rows[row], k); }
};
struct DenseRows {
    const double* values;  // (rows, cols)
    int cols;
    __device__ double at(int row, int k) const {
        return values[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) +
                      static_cast<std::size_t>(k)];
    }
};

// Rows of one batch that a CTA takes.
struct RowTile {
    int batch;
    int first_row;
    int num_rows;
};

// What is summed.
enum class DotKind : std::uint8_t {
    kSum,    // matrix(j, k) * x(i, k)
    kTerms,  // its square; the result is the sum's root
};
template <DotKind kKind>
__device__ double dot_factor(double value) {
    return kKind == DotKind::kTerms ? value * value : value;
}

// out(i, j) = sum over k of matrix(j, k) * x(i, k), the matrix being that of row i's batch.
template <class View, class Rows>
struct DotJob {
    const View* matrices;  // (batches) of (num_columns, K)
    const RowTile* tiles;  // (grid y)
    Rows x;                // (rows, K)
    double* out;           // (rows, num_columns)
    int num_columns;       // a multiple of 64
};

template <int kRows, DotKind kKind, class View, class Rows>
__global__ void __launch_bounds__(kDotThreads) dot_tiles(DotJob<View, Rows> job) {
    __shared__ double weights[kDotStep][kDotColumns + 1];
    __shared__ double values[kDotStep][kRows + 1];
    constexpr int kSide = 16;
    constexpr int kColumnsEach = kDotColumns / kSide;
    constexpr int kRowsEach = kRows / kSide;
    const RowTile tile = job.tiles[blockIdx.y];
    const View matrix = job.matrices[tile.batch];
    const int first_column = static_cast<int>(blockIdx.x) * kDotColumns;
    const int thread = static_cast<int>(threadIdx.x);
    const int k_own = thread % kDotStep;
    const int line_own = thread / kDotStep;
    const int own_column = thread % kSide;
    const int own_row = thread / kSide;
    double sums[kRowsEach][kColumnsEach] = {};
    for (int k_base = 0; k_base < matrix.cols; k_base += kDotStep) {
        for (int line = line_own; line < kDotColumns; line += kSide) {
            weights[k_own][line] =
                dot_factor<kKind>(weight_value(matrix, first_column + line, k_base + k_own));
        }
        for (int line = line_own; line < kRows; line += kSide) {
            values[k_own][line] =
                line < tile.num_rows
                    ? dot_factor<kKind>(job.x.at(tile.first_row + line, k_base + k_own))
                    : 0.0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDotStep; ++k) {
            double w[kColumnsEach];
            for (int j = 0; j < kColumnsEach; ++j) w[j] = weights[k][own_column + kSide * j];
            for (int i = 0; i < kRowsEach; ++i) {
                const double x = values[k][own_row + kSide * i];
                for (int j = 0; j < kColumnsEach; ++j) sums[i][j] = fma(w[j], x, sums[i][j]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < kRowsEach; ++i) {
        const int row = own_row + kSide * i;
        if (row >= tile.num_rows) continue;
        double* out = job.out + static_cast<std::size_t>(tile.first_row + row) *
                                    static_cast<std::size_t>(job.num_columns);
        for (int j = 0; j < kColumnsEach; ++j) {
            out[first_column + own_column + kSide * j] =
                kKind == DotKind::kTerms ? sqrt(sums[i][j]) : sums[i][j];
        }
    }
}

}  // namespace gcmoe::reference
