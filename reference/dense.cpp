#include "reference/dense.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "base/math.hpp"

namespace gcmoe::reference {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kRowsAtOnce = 4;  // accumulators of 4 rows stay in registers

// Four doubles, one AVX register. (GCC 12 keeps wider ones in memory.)
using HalfLanes = double __attribute__((vector_size(kLanes / 2 * sizeof(double))));

double sum_lanes(const double* lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <std::size_t kRows>
__attribute__((always_inline)) inline void dot_some_rows(const double* row, const double* x,
                                                         std::size_t cols, double* out) {
    HalfLanes low[kRows] = {};
    HalfLanes high[kRows] = {};
    for (std::size_t k = 0; k < cols; k += kLanes) {
        HalfLanes w_low;
        HalfLanes w_high;
        std::memcpy(&w_low, row + k, sizeof(w_low));
        std::memcpy(&w_high, row + k + kLanes / 2, sizeof(w_high));
        for (std::size_t i = 0; i < kRows; ++i) {
            HalfLanes x_low;
            HalfLanes x_high;
            std::memcpy(&x_low, x + i * cols + k, sizeof(x_low));
            std::memcpy(&x_high, x + i * cols + k + kLanes / 2, sizeof(x_high));
            low[i] += w_low * x_low;
            high[i] += w_high * x_high;
        }
    }
    for (std::size_t i = 0; i < kRows; ++i) {
        double lanes[kLanes];
        std::memcpy(lanes, &low[i], sizeof(low[i]));
        std::memcpy(lanes + kLanes / 2, &high[i], sizeof(high[i]));
        out[i] = sum_lanes(lanes);
    }
}

// A few rows of x stay in the first cache while all of w passes over them.
__attribute__((always_inline)) inline void dot_all_rows(const Matrix& w, const Matrix& x,
                                                        Matrix* out) {
    std::size_t i = 0;
    for (; i + kRowsAtOnce <= x.rows; i += kRowsAtOnce) {
        for (std::size_t j = 0; j < w.rows; ++j) {
            dot_some_rows<kRowsAtOnce>(w.row(j), x.row(i), x.cols, out->row(j) + i);
        }
    }
    for (; i < x.rows; ++i) {
        for (std::size_t j = 0; j < w.rows; ++j) {
            dot_some_rows<1>(w.row(j), x.row(i), x.cols, out->row(j) + i);
        }
    }
}

void dot_rows_baseline(const Matrix& w, const Matrix& x, Matrix* out) { dot_all_rows(w, x, out); }

// The same operations on wider registers: no fused multiply-add, hence the same bits.
#if defined(__x86_64__)
__attribute__((target("avx2"))) void dot_rows_avx2(const Matrix& w, const Matrix& x, Matrix* out) {
    dot_all_rows(w, x, out);
}
#endif

using DotRows = void (*)(const Matrix&, const Matrix&, Matrix*);

DotRows choose_dot_rows() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return dot_rows_avx2;
#endif
    return dot_rows_baseline;
}

// Weight rows that are decoded together.
constexpr int kWeightRows = 16;

// Rows begin..begin + 15 of a matrix, fewer at its end.
template <class View>
Matrix decode_rows(const View& view, int begin) {
    const int count = std::min(kWeightRows, view.rows - begin);
    Matrix rows(size_of(count), size_of(view.cols));
    for (int i = 0; i < count; ++i) decode_row(view, begin + i, rows.row(size_of(i)));
    return rows;
}

Matrix squares(Matrix matrix) {
    for (double& value : matrix.values) value *= value;
    return matrix;
}

}  // namespace

void decode_row(const Mxfp4View& view, int row, double* out) {
    for (int col = 0; col < view.cols; ++col) out[col] = weight_value(view, row, col);
}

void decode_row(const Fp8View& view, int row, double* out) {
    for (int col = 0; col < view.cols; ++col) out[col] = weight_value(view, row, col);
}

void decode_row(const CodedRow& row, int cols, double* out) {
    for (int col = 0; col < cols; ++col) out[col] = coded_value(row, col);
}

void dot_rows(const Matrix& w, const Matrix& x, Matrix* out) {
    static const DotRows chosen = choose_dot_rows();
    GCMOE_CHECK(x.cols % kLanes == 0 && w.cols == x.cols, w.cols, x.cols);
    *out = Matrix(w.rows, x.rows);
    chosen(w, x, out);
}

template <class View>
void sum_batch(const View& matrix, const float* bias, const Matrix& x, Matrix* sums) {
    *sums = Matrix(x.rows, size_of(matrix.rows));
    Matrix columns;
    for (int begin = 0; begin < matrix.rows; begin += kWeightRows) {
        dot_rows(decode_rows(matrix, begin), x, &columns);
        for (std::size_t j = 0; j < columns.rows; ++j) {
            const int column = begin + static_cast<int>(j);
            for (std::size_t i = 0; i < x.rows; ++i) {
                sums->row(i)[column] = with_bias(columns.row(j)[i], bias, column);
            }
        }
    }
}

template <class View>
void terms_batch(const View& matrix, const Matrix& x, Matrix* terms) {
    *terms = Matrix(x.rows, size_of(matrix.rows));
    const Matrix x_squares = squares(x);
    Matrix columns;
    for (int begin = 0; begin < matrix.rows; begin += kWeightRows) {
        dot_rows(squares(decode_rows(matrix, begin)), x_squares, &columns);
        for (std::size_t j = 0; j < columns.rows; ++j) {
            for (std::size_t i = 0; i < x.rows; ++i) {
                terms->row(i)[size_of(begin) + j] = std::sqrt(columns.row(j)[i]);
            }
        }
    }
}

void gate_batch(const Matrix& gate, const Matrix& up, const Activation& activation,
                const std::vector<double>& weight, Matrix* gated) {
    *gated = Matrix(gate.rows, gate.cols);
    for (std::size_t i = 0; i < gate.rows; ++i) {
        for (std::size_t col = 0; col < gate.cols; ++col) {
            gated->row(i)[col] =
                numerics::swiglu_fp64(gate.row(i)[col], up.row(i)[col], activation) * weight[i];
        }
    }
}

template <class View>
void gated_batch(const ExpertMatrices<View>& expert, const Activation& activation, const Matrix& x,
                 const std::vector<double>& weight, Matrix* gated) {
    Matrix gate;
    Matrix up;
    sum_batch(expert.gate, expert.gate_bias, x, &gate);
    sum_batch(expert.up, expert.up_bias, x, &up);
    gate_batch(gate, up, activation, weight, gated);
}

template <class View>
void down_batch(const ExpertMatrices<View>& expert, const Matrix& act, Matrix* sums) {
    sum_batch(expert.down, nullptr, act, sums);
}

template void sum_batch(const Mxfp4View&, const float*, const Matrix&, Matrix*);
template void sum_batch(const Fp8View&, const float*, const Matrix&, Matrix*);
template void terms_batch(const Mxfp4View&, const Matrix&, Matrix*);
template void terms_batch(const Fp8View&, const Matrix&, Matrix*);
template void gated_batch(const ExpertMatrices<Mxfp4View>&, const Activation&, const Matrix&,
                          const std::vector<double>&, Matrix*);
template void gated_batch(const ExpertMatrices<Fp8View>&, const Activation&, const Matrix&,
                          const std::vector<double>&, Matrix*);
template void down_batch(const ExpertMatrices<Mxfp4View>&, const Matrix&, Matrix*);
template void down_batch(const ExpertMatrices<Fp8View>&, const Matrix&, Matrix*);

}  // namespace gcmoe::reference
