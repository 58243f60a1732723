// The layer in FP64, one output element a function, straight from checkpoint bytes. The same source
// runs on the host and, a thread per element, on the device. layer.hpp has the batch forms.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/nan_math.hpp"
#include "numerics/quantise.hpp"
#include "numerics/swiglu.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::reference {

// A row of E4M3 codes and its scale words, natural K order.
struct CodedRow {
    const std::uint8_t* codes = nullptr;    // (cols) e4m3
    const std::uint32_t* scales = nullptr;  // (cols / 128) words
    ActivationScale form = ActivationScale::kFp32K128;
};

// Columns that share one scale.
GCMOE_HD constexpr int scale_group(ActivationScale form) {
    return form == ActivationScale::kFp32K128 ? 128 : 32;
}

// The scale of a column.
GCMOE_HD inline double coded_scale(const CodedRow& row, int col) {
    const std::uint32_t word = row.scales[col / 128];
    if (row.form == ActivationScale::kFp32K128) {
        return static_cast<double>(numerics::bits_to_float(word));
    }
    const int group = col % 128 / 32;
    return static_cast<double>(
        numerics::ue8m0_to_float(static_cast<std::uint8_t>(word >> (8 * group))));
}

// code * scale: exact in FP64 (4 and 24 significant bits).
GCMOE_HD inline double coded_value(const CodedRow& row, int col) {
    return static_cast<double>(numerics::e4m3_to_float(row.codes[col])) * coded_scale(row, col);
}

// A weight of a routed expert: exact in FP64.
GCMOE_HD inline double weight_value(const Mxfp4View& matrix, int row, int col) {
    const auto byte = static_cast<std::int64_t>(row) * (matrix.cols / 2) + col / 2;
    const auto group = static_cast<std::int64_t>(row) * (matrix.cols / 32) + col / 32;
    const int shift = col % 2 == 0 ? 0 : 4;  // even K stands in the low nibble
    const auto nibble = static_cast<std::uint8_t>((matrix.nibbles[byte] >> shift) & 15);
    return static_cast<double>(numerics::e2m1_to_float(nibble)) *
           static_cast<double>(numerics::ue8m0_to_float(matrix.scales[group]));
}

// The scale of a weight of the shared expert.
GCMOE_HD inline double weight_scale(const Fp8View& matrix, int row, int col) {
    std::int64_t idx = 0;
    switch (matrix.grid) {
        case ScaleGrid::kFp32Block128:
        case ScaleGrid::kUe8m0Block128:
            idx = static_cast<std::int64_t>(row / 128) * ((matrix.cols + 127) / 128) + col / 128;
            break;
        case ScaleGrid::kUe8m0Block32:
            idx = static_cast<std::int64_t>(row / 32) * (matrix.cols / 32) + col / 32;
            break;
        case ScaleGrid::kUe8m0Row32:
            idx = static_cast<std::int64_t>(row) * (matrix.cols / 32) + col / 32;
            break;
    }
    if (matrix.grid == ScaleGrid::kFp32Block128) {
        return static_cast<double>(static_cast<const float*>(matrix.scales)[idx]);
    }
    return static_cast<double>(
        numerics::ue8m0_to_float(static_cast<const std::uint8_t*>(matrix.scales)[idx]));
}

// A weight of the shared expert: exact in FP64.
GCMOE_HD inline double weight_value(const Fp8View& matrix, int row, int col) {
    const auto idx = static_cast<std::int64_t>(row) * matrix.cols + col;
    return static_cast<double>(numerics::e4m3_to_float(matrix.codes[idx])) *
           weight_scale(matrix, row, col);
}

// One element of a GEMM: sum over K in order, FP64.
template <class View>
GCMOE_HD double dot(const View& matrix, int row, const CodedRow& x) {
    double sum = 0.0;
    for (int col = 0; col < matrix.cols; ++col) {
        sum += weight_value(matrix, row, col) * coded_value(x, col);
    }
    return sum;
}

// One expert's matrices. View is Mxfp4View (routed) or Fp8View (shared, without biases).
template <class View>
struct ExpertMatrices {
    View gate;                         // (inter, hidden)
    View up;                           // (inter, hidden)
    View down;                         // (hidden, inter)
    const float* gate_bias = nullptr;  // (inter), or null
    const float* up_bias = nullptr;    // (inter)
    const float* down_bias = nullptr;  // (hidden)
};

// A GEMM's sum with its column's bias; bias may be null.
GCMOE_HD inline double with_bias(double sum, const float* bias, int column) {
    return bias != nullptr ? sum + static_cast<double>(bias[column]) : sum;
}

// What the second GEMM reads, before it becomes FP8 again: the activation of a column's gate and
// up, times `weight` (1 for the shared expert and when the weight comes after the second GEMM).
template <class View>
GCMOE_HD double gated_value(const ExpertMatrices<View>& expert, int column, const CodedRow& x,
                            const Activation& activation, double weight) {
    const double gate = with_bias(dot(expert.gate, column, x), expert.gate_bias, column);
    const double up = with_bias(dot(expert.up, column, x), expert.up_bias, column);
    return numerics::swiglu_fp64(gate, up, activation) * weight;
}

// A combine row's element before its rounding: `sum` is the second GEMM's.
GCMOE_HD inline double output_from_sum(double sum, const float* down_bias, int column,
                                       double weight, WeightPlacement placement) {
    const double bias = down_bias != nullptr ? static_cast<double>(down_bias[column]) : 0.0;
    if (placement == WeightPlacement::kAfterSecondGemm) return weight * (sum + bias);
    return down_bias != nullptr ? sum + weight * bias : sum;
}

// The same with the operator's rounding points: bias and weight in FP32, then one rounding.
GCMOE_HD inline std::uint16_t rounded_output(double sum, const float* down_bias, int column,
                                             float weight, WeightPlacement placement) {
    float value = static_cast<float>(sum);
    if (placement == WeightPlacement::kAfterSecondGemm) {
        if (down_bias != nullptr) value += down_bias[column];
        value *= weight;
    } else if (down_bias != nullptr) {
        value += weight * down_bias[column];
    }
    return numerics::bf16_from_float(value);
}

// What an error of the first GEMM's sum counts in units of where each element has its own
// (judge_row.hpp). terms: the root of the sum of its squared terms.
GCMOE_HD inline double sum_unit(double terms, const float* bias, int column) {
    return bias != nullptr ? terms + numerics::abs(static_cast<double>(bias[column])) : terms;
}

// The same for a combine row's element and the second GEMM's sum.
GCMOE_HD inline double output_unit(double terms, const float* down_bias, int column, double weight,
                                   WeightPlacement placement) {
    const double size = numerics::abs(weight);
    if (placement == WeightPlacement::kAfterSecondGemm) {
        return size * sum_unit(terms, down_bias, column);
    }
    return terms + size * sum_unit(0.0, down_bias, column);
}

// 128 columns to E4M3, with an FP32 scale or four UE8M0 ones: the scale word. Shapes: values, codes
// (128).
GCMOE_HD inline std::uint32_t requantise_chunk(const double* values, ActivationScale form,
                                               std::uint8_t* codes) {
    float group[128];
    for (int i = 0; i < 128; ++i) group[i] = static_cast<float>(values[i]);
    if (form == ActivationScale::kFp32K128) {
        float scale = 0.0F;
        numerics::quantise_e4m3_fp32(group, 128, codes, &scale);
        return numerics::float_to_bits(scale);
    }
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        std::uint8_t code = 0;
        numerics::quantise_e4m3_ue8m0(group + 32 * i, 32, codes + 32 * i, &code);
        word |= static_cast<std::uint32_t>(code) << (8 * i);
    }
    return word;
}

// The combine rows of one token, as its owner's memory holds them.
struct TokenRows {
    const std::uint8_t* rows = nullptr;     // (topk) bf16 rows, row_stride bytes apart
    std::uint64_t row_stride = 0;           // bytes
    const std::int64_t* experts = nullptr;  // (topk) ids; outside [0, num_experts) = unused slot
    const std::uint16_t* shared =
        nullptr;  // (hidden) bf16, or null: the layer has no shared expert
    int topk = 0;
    int num_experts = 0;
};

// One output element: from +0, the FP32 sum over the live slots in slot order, then the shared row,
// one rounding. Without a live slot the sum is exactly +0.
GCMOE_HD inline std::uint16_t combined_value(const TokenRows& token, int column) {
    float sum = 0.0F;
    for (int slot = 0; slot < token.topk; ++slot) {
        const std::int64_t expert = token.experts[slot];
        if (expert < 0 || expert >= token.num_experts) continue;
        const std::uint8_t* row = token.rows + static_cast<std::uint64_t>(slot) * token.row_stride;
        sum += numerics::bf16_to_float(reinterpret_cast<const std::uint16_t*>(row)[column]);
    }
    if (token.shared != nullptr) sum += numerics::bf16_to_float(token.shared[column]);
    return numerics::bf16_from_float(sum);
}

// floor(log2(|value|)) of a finite, normal value; the bits of the exponent otherwise.
GCMOE_HD inline int exponent_of(double value) {
    const auto bits = __builtin_bit_cast(unsigned long long, value);
    return static_cast<int>((bits >> 52) & 0x7FF) - 1023;
}

// Exactly 2^exponent, exponent in -1022..1023.
GCMOE_HD inline double exp2_int(int exponent) {
    return __builtin_bit_cast(double, static_cast<unsigned long long>(exponent + 1023) << 52);
}

// Half the distance between E4M3 neighbours at a value (already divided by its scale).
GCMOE_HD inline double e4m3_half_step(double value) {
    int exponent = exponent_of(value);
    if (exponent < -6) exponent = -6;  // subnormals: multiples of 2^-9
    if (exponent > 8) exponent = 8;    // 256..448 is the last binade
    return exp2_int(exponent - 4);
}

// Half the distance between BF16 neighbours at a value.
GCMOE_HD inline double bf16_half_step(double value) {
    int exponent = exponent_of(value);
    if (exponent < -126) exponent = -126;
    if (exponent > 127) exponent = 127;
    return exp2_int(exponent - 8);
}

}  // namespace gcmoe::reference
