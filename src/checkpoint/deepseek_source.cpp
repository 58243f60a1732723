#include "checkpoint/deepseek_source.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/message.hpp"
#include "numerics/bf16.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;
constexpr std::size_t kMaxShownExperts = 16;

Status bad_tensor(const TensorView& tensor, const std::string& reason) {
    return {Code::kBadCheckpoint,
            fmt::format("file {}: tensor {}: {}", quote(tensor.path), quote(tensor.name), reason)};
}

Status check_dtype(const TensorView& tensor, std::initializer_list<Dtype> accepted) {
    std::string names;
    for (const Dtype dtype : accepted) {
        if (tensor.dtype == dtype) return {};
        if (!names.empty()) names += " or ";
        names += dtype_name(dtype);
    }
    return bad_tensor(tensor, fmt::format("dtype {}, needs {}", dtype_name(tensor.dtype), names));
}

Status check_shape(const TensorView& tensor, const std::vector<std::int64_t>& needed) {
    if (tensor.shape == needed) return {};
    return bad_tensor(
        tensor, fmt::format("shape {}, needs {}", shape_text(tensor.shape), shape_text(needed)));
}

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

float load_float(const std::uint8_t* bytes) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

float load_bf16(const std::uint8_t* bytes) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    return numerics::bf16_to_float(bits);
}

}  // namespace

Status find_scale_grid(const TensorView& scale, int rows, int cols, ScaleGrid* out) {
    struct Candidate {
        ScaleGrid grid;
        Dtype dtype;
        int block_rows;
        int block_cols;
    };
    constexpr Candidate kCandidates[] = {
        {ScaleGrid::kFp32Block128, Dtype::kF32, 128, 128},
        {ScaleGrid::kUe8m0Block128, Dtype::kF8E8m0, 128, 128},
        {ScaleGrid::kUe8m0Block32, Dtype::kF8E8m0, 32, 32},
        {ScaleGrid::kUe8m0Row32, Dtype::kF8E8m0, 1, 32},
    };
    int num_fitting = 0;
    for (const Candidate& candidate : kCandidates) {
        const std::vector<std::int64_t> shape = {ceil_div(rows, candidate.block_rows),
                                                 ceil_div(cols, candidate.block_cols)};
        if (scale.dtype != candidate.dtype || scale.shape != shape) continue;
        *out = candidate.grid;
        ++num_fitting;
    }
    if (num_fitting == 1) return {};
    return bad_tensor(scale,
                      fmt::format("{} {} is {} the scale grids of a [{}, {}] matrix, needs F32 "
                                  "per 128x128 or F8_E8M0 per 128x128, 32x32 or 1x32",
                                  dtype_name(scale.dtype), shape_text(scale.shape),
                                  num_fitting == 0 ? "none of" : "more than one of", rows, cols));
}

DeepseekSource::DeepseekSource(std::unique_ptr<CheckpointFolder> folder, DeepseekNames names,
                               const LayerInfo& info, GateUpOrder order)
    : folder_(std::move(folder)),
      names_(std::move(names)),
      info_(info),
      w1_is_gate_(order == GateUpOrder::kW1GateW3Up) {}

DeepseekSource::Matrix DeepseekSource::matrix_of(const char* name, int inter) const {
    const std::string file_name = name;
    if (file_name == "w2") return {file_name, "w2 (down)", info_.hidden, inter};
    const bool is_gate = (file_name == "w1") == w1_is_gate_;
    return {file_name, file_name + (is_gate ? " (gate)" : " (up)"), inter, info_.hidden};
}

DeepseekSource::Matrix DeepseekSource::routed_matrix(const char* name) const {
    return matrix_of(name, info_.inter);
}

Status DeepseekSource::missing_expert(int expert_idx, const std::string& name) const {
    std::string present;
    for (std::size_t idx = 0; idx < info_.present_experts.size(); ++idx) {
        if (idx == kMaxShownExperts) {
            present += ", ...";
            break;
        }
        if (idx > 0) present += ", ";
        present += std::to_string(info_.present_experts[idx]);
    }
    return {Code::kBadCheckpoint,
            fmt::format("folder {}: expert {}: tensor {} is missing; the checkpoint has {} of {} "
                        "experts: {}",
                        quote(folder_->folder()), expert_idx, quote(name),
                        info_.present_experts.size(), info_.num_experts, present)};
}

Status DeepseekSource::read_mxfp4(int expert_idx, const Matrix& matrix, Held* held,
                                  Mxfp4View* out) {
    TensorView weight;
    TensorView scale;
    for (const auto& [part, view] : {std::pair{"weight", &weight}, std::pair{"scale", &scale}}) {
        const std::string name = names_.expert(expert_idx, matrix.name, part);
        if (!folder_->contains(name)) return missing_expert(expert_idx, name);
        GCMOE_RETURN_IF_ERROR(folder_->tensor(name, view));
    }
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kI8, Dtype::kU8}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, {matrix.rows, matrix.cols / 2}));
    GCMOE_RETURN_IF_ERROR(check_dtype(scale, {Dtype::kF8E8m0}));
    GCMOE_RETURN_IF_ERROR(check_shape(scale, {matrix.rows, matrix.cols / kMxfp4Group}));
    if (const void* nan = std::memchr(scale.bytes, numerics::kUe8m0Nan, scale.num_bytes)) {
        const auto idx = static_cast<const std::uint8_t*>(nan) - scale.bytes;
        const int num_groups = matrix.cols / kMxfp4Group;
        return bad_tensor(
            scale, fmt::format("expert {}, matrix {}, row {}, group {}: scale code "
                               "255 is NaN",
                               expert_idx, matrix.label, idx / num_groups, idx % num_groups));
    }
    *out = {weight.bytes, scale.bytes, matrix.rows, matrix.cols};
    held->mappings.push_back(weight.keep_alive);
    held->mappings.push_back(scale.keep_alive);
    return {};
}

Status DeepseekSource::read_bias(int expert_idx, const Matrix& matrix, Held* held,
                                 const float** out) {
    const std::string name = names_.expert(expert_idx, matrix.name, "bias");
    if (folder_->contains(name) != info_.has_bias) {
        return {
            Code::kBadCheckpoint,
            fmt::format("folder {}: expert {}: tensor {} is {}, but the layer's first expert "
                        "has {}",
                        quote(folder_->folder()), expert_idx, quote(name),
                        info_.has_bias ? "missing" : "there", info_.has_bias ? "biases" : "none")};
    }
    *out = nullptr;
    if (!info_.has_bias) return {};
    TensorView bias;
    GCMOE_RETURN_IF_ERROR(folder_->tensor(name, &bias));
    GCMOE_RETURN_IF_ERROR(check_dtype(bias, {Dtype::kBf16, Dtype::kF32}));
    GCMOE_RETURN_IF_ERROR(check_shape(bias, {matrix.rows}));
    const auto num_rows = static_cast<std::size_t>(matrix.rows);
    auto values = std::make_unique<float[]>(num_rows);
    for (std::size_t row = 0; row < num_rows; ++row) {
        values[row] = bias.dtype == Dtype::kF32 ? load_float(bias.bytes + 4 * row)
                                                : load_bf16(bias.bytes + 2 * row);
        if (!std::isfinite(values[row])) {
            return bad_tensor(bias, fmt::format("expert {}, matrix {}, row {}: bias {} is not "
                                                "finite",
                                                expert_idx, matrix.label, row, values[row]));
        }
    }
    *out = values.get();
    held->floats.push_back(std::move(values));
    return {};
}

Status DeepseekSource::expert(int expert_idx, ExpertBytes* out) {
    if (expert_idx < 0 || expert_idx >= info_.num_experts) {
        return {Code::kBadIndex, fmt::format("expert {} is outside [0, {}) of {}", expert_idx,
                                             info_.num_experts, quote(names_.prefix))};
    }
    const auto held = std::make_shared<Held>();
    ExpertBytes bytes;
    for (const char* name : kMatrixNames) {
        const Matrix matrix = routed_matrix(name);
        const bool is_down = matrix.name == "w2";
        const bool is_gate = (matrix.name == "w1") == w1_is_gate_;
        Mxfp4View* view = is_down ? &bytes.down : is_gate ? &bytes.gate : &bytes.up;
        const float** bias = is_down   ? &bytes.down_bias
                             : is_gate ? &bytes.gate_bias
                                       : &bytes.up_bias;
        GCMOE_RETURN_IF_ERROR(read_mxfp4(expert_idx, matrix, held.get(), view));
        GCMOE_RETURN_IF_ERROR(read_bias(expert_idx, matrix, held.get(), bias));
    }
    bytes.keep_alive = held;
    *out = std::move(bytes);
    return {};
}

Status DeepseekSource::check_fp8_scales(const TensorView& scale, const Matrix& matrix, Held* held,
                                        Fp8View* out) {
    GCMOE_RETURN_IF_ERROR(find_scale_grid(scale, matrix.rows, matrix.cols, &out->grid));
    if (out->grid != info_.shared_grid) {
        return bad_tensor(scale, fmt::format("{} {} is another scale grid than that of w1",
                                             dtype_name(scale.dtype), shape_text(scale.shape)));
    }
    const auto num_scales = static_cast<std::size_t>(scale.shape[0] * scale.shape[1]);
    const auto place = [&](std::size_t idx) {
        const auto num_cols = static_cast<std::size_t>(scale.shape[1]);
        return fmt::format("matrix {}, scale row {}, scale column {}", matrix.label, idx / num_cols,
                           idx % num_cols);
    };
    out->scales = scale.bytes;
    if (out->grid != ScaleGrid::kFp32Block128) {
        const void* nan = std::memchr(scale.bytes, numerics::kUe8m0Nan, num_scales);
        if (nan == nullptr) return {};
        const auto idx = static_cast<const std::uint8_t*>(nan) - scale.bytes;
        return bad_tensor(scale, place(static_cast<std::size_t>(idx)) + ": code 255 is NaN");
    }
    // A copy: the file may have put the floats at an odd address.
    auto values = std::make_unique<float[]>(num_scales);
    for (std::size_t idx = 0; idx < num_scales; ++idx) {
        values[idx] = load_float(scale.bytes + 4 * idx);
        if (!std::isfinite(values[idx])) {
            return bad_tensor(scale, fmt::format("{}: {} is not finite", place(idx), values[idx]));
        }
    }
    out->scales = values.get();
    held->floats.push_back(std::move(values));
    return {};
}

Status DeepseekSource::read_fp8(const Matrix& matrix, Held* held, Fp8View* out) {
    TensorView weight;
    TensorView scale;
    GCMOE_RETURN_IF_ERROR(folder_->tensor(names_.shared(matrix.name, "weight"), &weight));
    GCMOE_RETURN_IF_ERROR(folder_->tensor(names_.shared(matrix.name, "scale"), &scale));
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kF8E4m3}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, {matrix.rows, matrix.cols}));
    out->codes = weight.bytes;
    out->rows = matrix.rows;
    out->cols = matrix.cols;
    GCMOE_RETURN_IF_ERROR(check_fp8_scales(scale, matrix, held, out));
    const std::uint64_t nan_idx = find_e4m3_nan(weight.bytes, weight.num_bytes);
    if (nan_idx != weight.num_bytes) {
        const auto cols = static_cast<std::uint64_t>(matrix.cols);
        return bad_tensor(weight, fmt::format("matrix {}, row {}, column {}: E4M3 code {:#04x} is "
                                              "NaN",
                                              matrix.label, nan_idx / cols, nan_idx % cols,
                                              weight.bytes[nan_idx]));
    }
    held->mappings.push_back(weight.keep_alive);
    held->mappings.push_back(scale.keep_alive);
    return {};
}

Status DeepseekSource::shared_expert(SharedExpertBytes* out) {
    if (info_.shared_inter == 0) {
        return {Code::kBadCheckpoint,
                fmt::format("folder {}: {} has no shared expert (no tensor {})",
                            quote(folder_->folder()), quote(names_.prefix),
                            quote(names_.shared("w1", "weight")))};
    }
    const auto held = std::make_shared<Held>();
    SharedExpertBytes bytes;
    for (const char* name : kMatrixNames) {
        const Matrix matrix = matrix_of(name, info_.shared_inter);
        const bool is_gate = (matrix.name == "w1") == w1_is_gate_;
        Fp8View* view = matrix.name == "w2" ? &bytes.down : is_gate ? &bytes.gate : &bytes.up;
        GCMOE_RETURN_IF_ERROR(read_fp8(matrix, held.get(), view));
    }
    bytes.keep_alive = held;
    *out = std::move(bytes);
    return {};
}

}  // namespace gcmoe::checkpoint
