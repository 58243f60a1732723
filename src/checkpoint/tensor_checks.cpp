#include "checkpoint/tensor_checks.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/message.hpp"
#include "numerics/bf16.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

// Index of the first E4M3 NaN (0x7F or 0xFF) among num_codes codes, or num_codes.
std::uint64_t find_e4m3_nan(const std::uint8_t* codes, std::uint64_t num_codes) {
    constexpr std::uint64_t kLow7 = 0x7F7F7F7F7F7F7F7FULL;
    constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
    std::uint64_t code_idx = 0;
    for (; code_idx + 8 <= num_codes; code_idx += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, codes + code_idx, sizeof(word));
        // Bit 7 of a byte is set by the addition only if its low seven bits are all ones.
        if ((((word & kLow7) + kOnes) & ~kLow7) != 0) break;
    }
    while (code_idx < num_codes && (codes[code_idx] & 0x7FU) != 0x7FU) ++code_idx;
    return code_idx;
}

std::uint16_t load_u16(const std::uint8_t* bytes) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    return bits;
}

float load_float(const std::uint8_t* bytes) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

std::string scale_place(const StoredTensor& scale, const MatrixPlace& place, std::size_t idx) {
    const auto num_cols = static_cast<std::size_t>(scale.shape[1]);
    return fmt::format("{}, scale row {}, scale column {}", place.label, idx / num_cols,
                       idx % num_cols);
}

Status hold_fp32_scales(const StoredTensor& scale, const MatrixPlace& place, HeldBytes* held,
                        Fp8View* out) {
    const auto num_scales = static_cast<std::size_t>(scale.shape[0] * scale.shape[1]);
    auto values = std::make_unique<float[]>(num_scales);
    GCMOE_RETURN_IF_ERROR(scale.read(0, scale.num_bytes, values.get()));
    for (std::size_t idx = 0; idx < num_scales; ++idx) {
        if (std::isfinite(values[idx]) && values[idx] > 0.0F) continue;
        return bad_tensor(
            scale, fmt::format("{}: {} is not {}", scale_place(scale, place, idx), values[idx],
                               std::isfinite(values[idx]) ? "above 0" : "finite"));
    }
    out->scales = values.get();
    held->floats.push_back(std::move(values));
    return {};
}

Status hold_ue8m0_scales(const StoredTensor& scale, const MatrixPlace& place, HeldBytes* held,
                         Fp8View* out) {
    const std::uint8_t* codes = nullptr;
    GCMOE_RETURN_IF_ERROR(hold_bytes(scale, 0, scale.num_bytes, held, &codes));
    out->scales = codes;
    const void* nan = std::memchr(codes, numerics::kUe8m0Nan, scale.num_bytes);
    if (nan == nullptr) return {};
    const auto idx = static_cast<const std::uint8_t*>(nan) - codes;
    return bad_tensor(
        scale, scale_place(scale, place, static_cast<std::size_t>(idx)) + ": code 255 is NaN");
}

}  // namespace

Status hold_bytes(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t num_bytes,
                  HeldBytes* held, const std::uint8_t** out) {
    auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(num_bytes);
    GCMOE_RETURN_IF_ERROR(tensor.read(begin, num_bytes, bytes.get()));
    *out = bytes.get();
    held->bytes.push_back(std::move(bytes));
    return {};
}

Status bad_tensor(const StoredTensor& tensor, const std::string& reason) {
    return {Code::kBadCheckpoint,
            fmt::format("file {}: tensor {}: {}", quote(tensor.path), quote(tensor.name), reason)};
}

Status check_dtype(const StoredTensor& tensor, std::initializer_list<Dtype> accepted) {
    std::string names;
    for (const Dtype dtype : accepted) {
        if (tensor.dtype == dtype) return {};
        if (!names.empty()) names += " or ";
        names += dtype_name(dtype);
    }
    return bad_tensor(tensor, fmt::format("dtype {}, needs {}", dtype_name(tensor.dtype), names));
}

Status check_shape(const StoredTensor& tensor, const std::vector<std::int64_t>& needed) {
    if (tensor.shape == needed) return {};
    return bad_tensor(
        tensor, fmt::format("shape {}, needs {}", shape_text(tensor.shape), shape_text(needed)));
}

Status find_scale_grid(const StoredTensor& scale, int rows, int cols, ScaleGrid* out) {
    constexpr std::pair<ScaleGrid, Dtype> kCandidates[] = {
        {ScaleGrid::kFp32Block128, Dtype::kF32},
        {ScaleGrid::kUe8m0Block128, Dtype::kF8E8m0},
        {ScaleGrid::kUe8m0Block32, Dtype::kF8E8m0},
        {ScaleGrid::kUe8m0Row32, Dtype::kF8E8m0},
    };
    int num_fitting = 0;
    for (const auto& [grid, dtype] : kCandidates) {
        const GridBlock block = grid_block(grid);
        const std::vector<std::int64_t> shape = {ceil_div(rows, block.rows),
                                                 ceil_div(cols, block.cols)};
        if (scale.dtype != dtype || scale.shape != shape) continue;
        *out = grid;
        ++num_fitting;
    }
    if (num_fitting == 1) return {};
    return bad_tensor(scale,
                      fmt::format("{} {} is {} the scale grids of a [{}, {}] matrix, needs F32 "
                                  "per 128x128 or F8_E8M0 per 128x128, 32x32 or 1x32",
                                  dtype_name(scale.dtype), shape_text(scale.shape),
                                  num_fitting == 0 ? "none of" : "more than one of", rows, cols));
}

Status check_mxfp4_scales(const StoredTensor& scale, const std::uint8_t* codes,
                          const MatrixPlace& place) {
    const int num_groups = place.cols / kMxfp4Group;
    const std::size_t num_codes =
        static_cast<std::size_t>(place.rows) * static_cast<std::size_t>(num_groups);
    const void* nan = std::memchr(codes, numerics::kUe8m0Nan, num_codes);
    if (nan == nullptr) return {};
    const auto idx = static_cast<const std::uint8_t*>(nan) - codes;
    return bad_tensor(scale, fmt::format("{}, row {}, group {}: scale code 255 is NaN", place.label,
                                         idx / num_groups, idx % num_groups));
}

Status view_mxfp4(const StoredTensor& weight, const StoredTensor& scale, const MatrixPlace& place,
                  HeldBytes* held, Mxfp4View* out) {
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kI8, Dtype::kU8}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, {place.rows, place.cols / 2}));
    GCMOE_RETURN_IF_ERROR(check_dtype(scale, {Dtype::kF8E8m0}));
    GCMOE_RETURN_IF_ERROR(check_shape(scale, {place.rows, place.cols / kMxfp4Group}));
    *out = {nullptr, nullptr, place.rows, place.cols};
    GCMOE_RETURN_IF_ERROR(hold_bytes(scale, 0, scale.num_bytes, held, &out->scales));
    GCMOE_RETURN_IF_ERROR(check_mxfp4_scales(scale, out->scales, place));
    return hold_bytes(weight, 0, weight.num_bytes, held, &out->nibbles);
}

Status view_fp8(const StoredTensor& weight, const StoredTensor& scale, const MatrixPlace& place,
                HeldBytes* held, Fp8View* out) {
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kF8E4m3}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, {place.rows, place.cols}));
    *out = {nullptr, nullptr, {}, place.rows, place.cols};
    GCMOE_RETURN_IF_ERROR(find_scale_grid(scale, place.rows, place.cols, &out->grid));
    GCMOE_RETURN_IF_ERROR(out->grid == ScaleGrid::kFp32Block128
                              ? hold_fp32_scales(scale, place, held, out)
                              : hold_ue8m0_scales(scale, place, held, out));
    GCMOE_RETURN_IF_ERROR(hold_bytes(weight, 0, weight.num_bytes, held, &out->codes));
    const std::uint64_t nan_idx = find_e4m3_nan(out->codes, weight.num_bytes);
    if (nan_idx == weight.num_bytes) return {};
    const auto cols = static_cast<std::uint64_t>(place.cols);
    return bad_tensor(weight,
                      fmt::format("{}, row {}, column {}: E4M3 code {:#04x} is NaN", place.label,
                                  nan_idx / cols, nan_idx % cols, out->codes[nan_idx]));
}

Status view_bf16(const StoredTensor& weight, const MatrixPlace& place, HeldBytes* held,
                 Bf16View* out) {
    constexpr std::uint16_t kExponent = 0x7F80;  // all ones: infinity or NaN
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kBf16}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, {place.rows, place.cols}));
    *out = {nullptr, place.rows, place.cols};
    GCMOE_RETURN_IF_ERROR(hold_bytes(weight, 0, weight.num_bytes, held, &out->bytes));
    const std::uint64_t num_values = weight.num_bytes / 2;
    for (std::uint64_t idx = 0; idx < num_values; ++idx) {
        const std::uint16_t bits = load_u16(out->bytes + 2 * idx);
        if ((bits & kExponent) != kExponent) continue;
        const auto cols = static_cast<std::uint64_t>(place.cols);
        return bad_tensor(
            weight, fmt::format("{}, row {}, column {}: {} is not finite", place.label, idx / cols,
                                idx % cols, numerics::bf16_to_float(bits)));
    }
    return {};
}

Status copy_biases(const StoredTensor& bias, std::uint64_t first_value, const MatrixPlace& place,
                   std::unique_ptr<float[]>* out) {
    const auto num_rows = static_cast<std::size_t>(place.rows);
    const std::uint64_t width = dtype_bytes(bias.dtype);
    std::vector<std::uint8_t> bytes(num_rows * width);
    GCMOE_RETURN_IF_ERROR(bias.read(first_value * width, bytes.size(), bytes.data()));
    auto values = std::make_unique<float[]>(num_rows);
    for (std::size_t row = 0; row < num_rows; ++row) {
        values[row] = bias.dtype == Dtype::kF32
                          ? load_float(bytes.data() + 4 * row)
                          : numerics::bf16_to_float(load_u16(bytes.data() + 2 * row));
        if (!std::isfinite(values[row])) {
            return bad_tensor(bias, fmt::format("{}, row {}: bias {} is not finite", place.label,
                                                row, values[row]));
        }
    }
    *out = std::move(values);
    return {};
}

}  // namespace gcmoe::checkpoint
