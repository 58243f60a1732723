#include "checkpoint/quantised_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "numerics/mxfp4.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

constexpr int kSharedKey = -1;
constexpr int kSharedBlock = 128;
constexpr const char* kMatrices[] = {"gate", "up", "down"};

// What quantised views point into.
struct Quantised {
    HeldBytes held;
    std::shared_ptr<const void> stored;

    // Holds the stored expert if a matrix passed through; else its bytes, up to four times those
    // of the quantised ones, go now.
    template <class View>
    void keep_viewed(const StoredExpert& expert) {
        for (const StoredView* view : {&expert.gate, &expert.up, &expert.down}) {
            if (std::holds_alternative<View>(*view)) stored = expert.keep_alive;
        }
    }
};

// A copy, or null without one.
const float* hold_bias(const float* bias, int num_rows, HeldBytes* held) {
    if (bias == nullptr) return nullptr;
    held->floats.push_back(std::make_unique<float[]>(static_cast<std::size_t>(num_rows)));
    std::copy_n(bias, num_rows, held->floats.back().get());
    return held->floats.back().get();
}

void measure_row(const float* stored, const float* quantised, int cols, QuantiseError* out) {
    for (int col = 0; col < cols; ++col) {
        const auto value = static_cast<double>(stored[col]);
        const double error = static_cast<double>(quantised[col]) - value;
        out->squared_error += error * error;
        out->squared_value += value * value;
        out->largest_error = std::max(out->largest_error, std::abs(error));
        out->largest_value = std::max(out->largest_value, std::abs(value));
    }
}

// The error of a whole matrix, rows decoded from both views.
void measure(const StoredView& stored, const StoredView& quantised, QuantiseError* out) {
    const int cols = cols_of(stored);
    std::vector<float> before(static_cast<std::size_t>(cols));
    std::vector<float> after(static_cast<std::size_t>(cols));
    for (int row = 0; row < rows_of(stored); ++row) {
        decode_row(stored, row, before.data());
        decode_row(quantised, row, after.data());
        measure_row(before.data(), after.data(), cols, out);
    }
    ++out->num_matrices;
}

std::uint8_t* new_bytes(int rows, int cols, HeldBytes* held) {
    held->bytes.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(
        static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)));
    return held->bytes.back().get();
}

// A code and its scale are finite each; their product may not be.
Status check_row(const float* values, int cols, const std::string& matrix, int row) {
    for (int col = 0; col < cols; col += kMxfp4Group) {
        const float amax =
            numerics::group_amax(values + col, std::min<int>(kMxfp4Group, cols - col));
        if (std::isfinite(amax)) continue;
        return {Code::kBadCheckpoint,
                fmt::format("{}, row {}, group {} of {} columns: a weight times its scale is {}, "
                            "beyond FP32's range",
                            matrix, row, col / kMxfp4Group, int{kMxfp4Group}, amax)};
    }
    return {};
}

Status to_mxfp4(const StoredView& stored, const std::string& matrix, HeldBytes* held,
                Mxfp4View* view) {
    if (const auto* same = std::get_if<Mxfp4View>(&stored)) {
        *view = *same;
        return {};
    }
    const int rows = rows_of(stored);
    const int cols = cols_of(stored);
    std::uint8_t* nibbles = new_bytes(rows, cols / 2, held);
    std::uint8_t* scales = new_bytes(rows, cols / kMxfp4Group, held);
    *view = {nibbles, scales, rows, cols};
    std::vector<float> values(static_cast<std::size_t>(cols));
    for (int row = 0; row < rows; ++row) {
        decode_row(stored, row, values.data());
        GCMOE_RETURN_IF_ERROR(check_row(values.data(), cols, matrix, row));
        for (int col = 0; col < cols; col += kMxfp4Group) {
            numerics::quantise_mxfp4_group(values.data() + col, nibbles, scales);
            nibbles += kMxfp4Group / 2;
            ++scales;
        }
    }
    return {};
}

// The rows of one strip of blocks to E4M3, block by block. Shapes: values, codes (rows, cols).
void quantise_strip(const float* values, int rows, int cols, std::uint8_t* codes, float* scales) {
    for (int first_col = 0; first_col < cols; first_col += kSharedBlock) {
        const int num_cols = std::min(kSharedBlock, cols - first_col);
        float amax = 0.0F;
        for (int row = 0; row < rows; ++row) {
            amax = std::max(amax, numerics::group_amax(values + row * cols + first_col, num_cols));
        }
        const float inverse = numerics::fp32_inverse_scale(amax);
        *scales++ = numerics::fp32_scale(amax);
        for (int row = 0; row < rows; ++row) {
            const int begin = row * cols + first_col;
            for (int idx = begin; idx < begin + num_cols; ++idx) {
                codes[idx] = numerics::e4m3_from_float(values[idx] * inverse);
            }
        }
    }
}

Status to_fp8(const StoredView& stored, const std::string& matrix, HeldBytes* held, Fp8View* view) {
    if (const auto* same = std::get_if<Fp8View>(&stored)) {
        *view = *same;
        return {};
    }
    const int rows = rows_of(stored);
    const int cols = cols_of(stored);
    const auto width = static_cast<std::size_t>(cols);
    const auto grid_cols = static_cast<std::size_t>(ceil_div(cols, kSharedBlock));
    std::uint8_t* codes = new_bytes(rows, cols, held);
    held->floats.push_back(std::make_unique<float[]>(
        static_cast<std::size_t>(ceil_div(rows, kSharedBlock)) * grid_cols));
    float* scales = held->floats.back().get();
    *view = {codes, scales, ScaleGrid::kFp32Block128, rows, cols};
    std::vector<float> values(kSharedBlock * width);
    for (int first_row = 0; first_row < rows; first_row += kSharedBlock) {
        const int num_rows = std::min(kSharedBlock, rows - first_row);
        for (int row = 0; row < num_rows; ++row) {
            float* decoded = values.data() + static_cast<std::size_t>(row) * width;
            decode_row(stored, first_row + row, decoded);
            GCMOE_RETURN_IF_ERROR(check_row(decoded, cols, matrix, first_row + row));
        }
        quantise_strip(values.data(), num_rows, cols, codes, scales);
        codes += static_cast<std::size_t>(num_rows) * width;
        scales += grid_cols;
    }
    return {};
}

}  // namespace

double QuantiseError::relative_l2() const {
    return squared_value > 0.0 ? std::sqrt(squared_error / squared_value) : 0.0;
}

bool QuantiseReport::is_empty() const {
    return routed[0].num_matrices == 0 && shared[0].num_matrices == 0;
}

QuantisedSource::QuantisedSource(std::unique_ptr<StoredSource> source)
    : source_(std::move(source)), report_(std::make_shared<QuantiseReport>()) {}

Status QuantisedSource::expert(int expert_idx, ExpertBytes* out) {
    StoredExpert stored;
    GCMOE_RETURN_IF_ERROR(source_->expert(expert_idx, &stored));
    const auto quantised = std::make_shared<Quantised>();
    ExpertBytes bytes;
    const std::pair<const StoredView*, Mxfp4View*> matrices[] = {
        {&stored.gate, &bytes.gate}, {&stored.up, &bytes.up}, {&stored.down, &bytes.down}};
    const bool is_new = measured_.count(expert_idx) == 0;
    for (std::size_t idx = 0; idx < report_->routed.size(); ++idx) {
        const auto& [from, to] = matrices[idx];
        const std::string matrix = fmt::format("expert {}, matrix {}", expert_idx, kMatrices[idx]);
        GCMOE_RETURN_IF_ERROR(to_mxfp4(*from, matrix, &quantised->held, to));
        const bool is_same = std::holds_alternative<Mxfp4View>(*from);
        if (is_new && !is_same) measure(*from, *to, &report_->routed[idx]);
    }
    measured_.insert(expert_idx);
    bytes.gate_bias = hold_bias(stored.gate_bias, rows_of(stored.gate), &quantised->held);
    bytes.up_bias = hold_bias(stored.up_bias, rows_of(stored.up), &quantised->held);
    bytes.down_bias = hold_bias(stored.down_bias, rows_of(stored.down), &quantised->held);
    quantised->keep_viewed<Mxfp4View>(stored);
    bytes.keep_alive = quantised;
    *out = std::move(bytes);
    return {};
}

Status QuantisedSource::shared_expert(SharedExpertBytes* out) {
    StoredExpert stored;
    GCMOE_RETURN_IF_ERROR(source_->shared_expert(&stored));
    const auto quantised = std::make_shared<Quantised>();
    SharedExpertBytes bytes;
    const std::pair<const StoredView*, Fp8View*> matrices[] = {
        {&stored.gate, &bytes.gate}, {&stored.up, &bytes.up}, {&stored.down, &bytes.down}};
    const bool is_new = measured_.count(kSharedKey) == 0;
    for (std::size_t idx = 0; idx < report_->shared.size(); ++idx) {
        const auto& [from, to] = matrices[idx];
        const std::string matrix = fmt::format("shared expert, matrix {}", kMatrices[idx]);
        GCMOE_RETURN_IF_ERROR(to_fp8(*from, matrix, &quantised->held, to));
        const bool is_same = std::holds_alternative<Fp8View>(*from);
        if (is_new && !is_same) measure(*from, *to, &report_->shared[idx]);
    }
    measured_.insert(kSharedKey);
    quantised->keep_viewed<Fp8View>(stored);
    bytes.keep_alive = quantised;
    *out = std::move(bytes);
    return {};
}

}  // namespace gcmoe::checkpoint
