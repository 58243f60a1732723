// Batches of FP64 dot products: the inner loop of the reference, in one place.
#pragma once

#include <cstddef>
#include <vector>

#include "reference/element.hpp"

namespace gcmoe::reference {

// A dense row-major matrix in FP64.
struct Matrix {
    std::size_t rows = 0;
    std::size_t cols = 0;
    std::vector<double> values;  // (rows, cols)

    Matrix() = default;
    Matrix(std::size_t num_rows, std::size_t num_cols)
        : rows(num_rows), cols(num_cols), values(num_rows * num_cols) {}
    [[nodiscard]] double* row(std::size_t row_idx) { return values.data() + row_idx * cols; }
    [[nodiscard]] const double* row(std::size_t row_idx) const {
        return values.data() + row_idx * cols;
    }
};

// The weights of one row. Shapes: out (view.cols).
void decode_row(const Mxfp4View& view, int row, double* out);
void decode_row(const Fp8View& view, int row, double* out);
// The values of one activation row. Shapes: out (cols).
void decode_row(const CodedRow& row, int cols, double* out);

// out(j, i) = sum over k of w(j, k) * x(i, k) in a fixed order: 8 lanes, then a tree; the order
// does not depend on the machine's vectors. Shapes: w (n, K), x (rows, K), out (n, rows); K a
// multiple of 8.
void dot_rows(const Matrix& w, const Matrix& x, Matrix* out);

// x times a matrix, plus a bias unless it is null. Shapes: matrix (n, K), bias (n), x (rows, K),
// sums (rows, n).
template <class View>
void sum_batch(const View& matrix, const float* bias, const Matrix& x, Matrix* sums);

// sqrt(sum over k of (w(j, k) * x(i, k))^2) of every element of the same product. Shapes: matrix
// (n, K), x (rows, K), terms (rows, n).
template <class View>
void terms_batch(const View& matrix, const Matrix& x, Matrix* terms);

// The activation of the first GEMM's sums, times the rows' weights. Shapes: gate, up, gated (rows,
// inter), weight (rows).
void gate_batch(const Matrix& gate, const Matrix& up, const Activation& activation,
                const std::vector<double>& weight, Matrix* gated);

// The first GEMM and the activation. Shapes: x (rows, hidden), weight (rows), gated (rows, inter).
template <class View>
void gated_batch(const ExpertMatrices<View>& expert, const Activation& activation, const Matrix& x,
                 const std::vector<double>& weight, Matrix* gated);

// The second GEMM without bias and weight. Shapes: act (rows, inter), sums (rows, hidden).
template <class View>
void down_batch(const ExpertMatrices<View>& expert, const Matrix& act, Matrix* sums);

}  // namespace gcmoe::reference
