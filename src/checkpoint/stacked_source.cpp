#include "checkpoint/stacked_source.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/math.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

constexpr int kBlockBytes = kMxfp4Group / 2;
constexpr std::int64_t kMaxStackedExperts = 1 << 16;

// Experts, inter and hidden from the first tensor.
Status measure_first(const StoredTensor& first, bool has_blocks, LayerInfo* info) {
    const std::vector<std::int64_t>& shape = first.shape;
    const std::size_t num_dims = has_blocks ? 4 : 3;
    bool fits = shape.size() == num_dims && shape[0] >= 1 && shape[0] <= kMaxStackedExperts &&
                shape[1] >= 2 && shape[1] <= 2 * kMaxWidth && shape[1] % (2 * kMxfp4Group) == 0 &&
                shape[2] >= 1 && shape[2] <= kMaxWidth;
    fits = fits && (has_blocks ? shape[3] == kBlockBytes : shape[2] % kBlockBytes == 0);
    const std::int64_t hidden = !fits ? 0 : has_blocks ? shape[2] * kMxfp4Group : shape[2] * 2;
    if (!fits || hidden > kMaxWidth) {
        return bad_tensor(
            first, fmt::format("shape {} is not (experts, 2 * inter, {}) with inter "
                               "and hidden multiples of {} up to {}",
                               shape_text(shape), has_blocks ? "hidden / 32, 16" : "hidden / 2",
                               kMxfp4Group, kMaxWidth));
    }
    info->inter = static_cast<int>(shape[1] / 2);
    info->hidden = static_cast<int>(hidden);
    for (int expert_idx = 0; expert_idx < shape[0]; ++expert_idx) {
        info->present_experts.push_back(expert_idx);
    }
    return {};
}

Status check_stack(const StoredTensor& weight, const StoredTensor& scale, int rows, int cols,
                   const LayerInfo& info, bool has_blocks) {
    const auto num_experts = static_cast<std::int64_t>(info.present_experts.size());
    const std::vector<std::int64_t> scale_shape = {num_experts, rows, cols / kMxfp4Group};
    std::vector<std::int64_t> shape = {num_experts, rows, cols / 2};
    if (has_blocks) shape = {num_experts, rows, cols / kMxfp4Group, kBlockBytes};
    GCMOE_RETURN_IF_ERROR(check_dtype(weight, {Dtype::kU8, Dtype::kI8}));
    GCMOE_RETURN_IF_ERROR(check_shape(weight, shape));
    GCMOE_RETURN_IF_ERROR(check_dtype(scale, {Dtype::kU8, Dtype::kF8E8m0}));
    return check_shape(scale, scale_shape);
}

Status open_biases(CheckpointFolder* folder, const std::string& prefix, const StackedNames& names,
                   LayerInfo* info, StackedTensors* out) {
    info->has_bias = folder->contains(prefix + names.first_bias);
    if (info->has_bias != folder->contains(prefix + names.second_bias)) {
        return {Code::kBadCheckpoint,
                fmt::format("folder {}: has only one of {} and {}", quote(folder->folder()),
                            quote(prefix + names.first_bias), quote(prefix + names.second_bias))};
    }
    if (!info->has_bias) return {};
    const auto num_experts = static_cast<std::int64_t>(info->present_experts.size());
    GCMOE_RETURN_IF_ERROR(folder->tensor(prefix + names.first_bias, &out->first_bias));
    GCMOE_RETURN_IF_ERROR(folder->tensor(prefix + names.second_bias, &out->second_bias));
    for (const StoredTensor* bias : {&out->first_bias, &out->second_bias}) {
        GCMOE_RETURN_IF_ERROR(check_dtype(*bias, {Dtype::kBf16, Dtype::kF32}));
    }
    GCMOE_RETURN_IF_ERROR(check_shape(out->first_bias, {num_experts, 2 * info->inter}));
    return check_shape(out->second_bias, {num_experts, info->hidden});
}

// Every second row of a row-major array of 2 * rows rows, from the first or the second on.
std::unique_ptr<std::uint8_t[]> rows_in_turn(const std::uint8_t* bytes, int rows, int row_bytes,
                                             bool is_up) {
    const auto width = static_cast<std::size_t>(row_bytes);
    auto out = std::make_unique_for_overwrite<std::uint8_t[]>(area(rows, row_bytes));
    const std::uint8_t* from = bytes + (is_up ? width : 0);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        std::memcpy(out.get() + row * width, from + 2 * row * width, width);
    }
    return out;
}

}  // namespace

Status open_stacked(CheckpointFolder* folder, const std::string& prefix, const StackedNames& names,
                    LayerInfo* info, StackedTensors* out) {
    const std::string experts = prefix + "experts.";
    GCMOE_RETURN_IF_ERROR(folder->tensor(experts + names.first, &out->first));
    GCMOE_RETURN_IF_ERROR(folder->tensor(experts + names.first_scale, &out->first_scale));
    GCMOE_RETURN_IF_ERROR(folder->tensor(experts + names.second, &out->second));
    GCMOE_RETURN_IF_ERROR(folder->tensor(experts + names.second_scale, &out->second_scale));
    GCMOE_RETURN_IF_ERROR(measure_first(out->first, names.has_blocks, info));
    GCMOE_RETURN_IF_ERROR(check_stack(out->first, out->first_scale, 2 * info->inter, info->hidden,
                                      *info, names.has_blocks));
    GCMOE_RETURN_IF_ERROR(check_stack(out->second, out->second_scale, info->hidden, info->inter,
                                      *info, names.has_blocks));
    return open_biases(folder, experts, names, info, out);
}

StackedSource::StackedSource(std::unique_ptr<CheckpointFolder> folder, StackedTensors tensors,
                             StackedRows rows, TensorNames shared_names, const LayerInfo& info)
    : folder_(std::move(folder)),
      tensors_(std::move(tensors)),
      rows_(rows),
      shared_names_(std::move(shared_names)),
      info_(info) {}

Status StackedSource::read_first(int expert_idx, HeldBytes* held, Mxfp4View* gate,
                                 Mxfp4View* up) const {
    const int inter = info_.inter;
    const int row_bytes = info_.hidden / 2;
    const int row_scales = info_.hidden / kMxfp4Group;
    const std::size_t num_bytes = area(2 * inter, row_bytes);
    const std::size_t num_scales = area(2 * inter, row_scales);
    const auto expert = static_cast<std::uint64_t>(expert_idx);
    const MatrixPlace place{fmt::format("expert {}, gate and up", expert_idx), 2 * inter,
                            info_.hidden};
    HeldBytes whole;  // rows in turn are needed apart only
    HeldBytes* keeper = rows_ == StackedRows::kInTurn ? &whole : held;
    const std::uint8_t* nibbles = nullptr;
    const std::uint8_t* scales = nullptr;
    GCMOE_RETURN_IF_ERROR(
        hold_bytes(tensors_.first_scale, expert * num_scales, num_scales, keeper, &scales));
    GCMOE_RETURN_IF_ERROR(check_mxfp4_scales(tensors_.first_scale, scales, place));
    GCMOE_RETURN_IF_ERROR(
        hold_bytes(tensors_.first, expert * num_bytes, num_bytes, keeper, &nibbles));
    for (Mxfp4View* view : {gate, up}) {
        const bool is_up = view == up;
        *view = {nibbles, scales, inter, info_.hidden};
        if (rows_ == StackedRows::kInTurn) {
            held->bytes.push_back(rows_in_turn(nibbles, inter, row_bytes, is_up));
            view->nibbles = held->bytes.back().get();
            held->bytes.push_back(rows_in_turn(scales, inter, row_scales, is_up));
            view->scales = held->bytes.back().get();
        } else if (is_up == (rows_ == StackedRows::kGateFirst)) {
            view->nibbles += area(inter, row_bytes);
            view->scales += area(inter, row_scales);
        }
    }
    return {};
}

Status StackedSource::read_second(int expert_idx, HeldBytes* held, Mxfp4View* down) const {
    const std::size_t num_bytes = area(info_.hidden, info_.inter / 2);
    const std::size_t num_scales = area(info_.hidden, info_.inter / kMxfp4Group);
    const auto expert = static_cast<std::uint64_t>(expert_idx);
    const MatrixPlace place{fmt::format("expert {}, down", expert_idx), info_.hidden, info_.inter};
    *down = {nullptr, nullptr, info_.hidden, info_.inter};
    GCMOE_RETURN_IF_ERROR(
        hold_bytes(tensors_.second_scale, expert * num_scales, num_scales, held, &down->scales));
    GCMOE_RETURN_IF_ERROR(check_mxfp4_scales(tensors_.second_scale, down->scales, place));
    return hold_bytes(tensors_.second, expert * num_bytes, num_bytes, held, &down->nibbles);
}

Status StackedSource::read_biases(int expert_idx, HeldBytes* held, StoredExpert* out) const {
    if (!info_.has_bias) return {};
    const auto expert = static_cast<std::uint64_t>(expert_idx);
    const auto inter = static_cast<std::size_t>(info_.inter);
    const MatrixPlace first{fmt::format("expert {}, gate and up", expert_idx), 2 * info_.inter, 1};
    const MatrixPlace second{fmt::format("expert {}, down", expert_idx), info_.hidden, 1};
    std::unique_ptr<float[]> stacked;
    std::unique_ptr<float[]> down;
    GCMOE_RETURN_IF_ERROR(copy_biases(tensors_.first_bias, expert * 2 * inter, first, &stacked));
    GCMOE_RETURN_IF_ERROR(copy_biases(
        tensors_.second_bias, expert * static_cast<std::uint64_t>(info_.hidden), second, &down));
    auto gate = std::make_unique<float[]>(inter);
    auto up = std::make_unique<float[]>(inter);
    for (std::size_t row = 0; row < inter; ++row) {
        const bool in_turn = rows_ == StackedRows::kInTurn;
        gate[row] = stacked[in_turn ? 2 * row : row];
        up[row] = stacked[in_turn ? 2 * row + 1 : inter + row];
    }
    if (rows_ == StackedRows::kUpFirst) std::swap(gate, up);
    out->gate_bias = gate.get();
    out->up_bias = up.get();
    out->down_bias = down.get();
    held->floats.push_back(std::move(gate));
    held->floats.push_back(std::move(up));
    held->floats.push_back(std::move(down));
    return {};
}

Status StackedSource::expert(int expert_idx, StoredExpert* out) {
    if (expert_idx < 0 || expert_idx >= static_cast<int>(info_.present_experts.size())) {
        return {Code::kBadIndex, fmt::format("expert {} is outside [0, {}) of {}", expert_idx,
                                             info_.present_experts.size(), quote(info_.prefix))};
    }
    const auto held = std::make_shared<HeldBytes>();
    Mxfp4View gate;
    Mxfp4View up;
    Mxfp4View down;
    GCMOE_RETURN_IF_ERROR(read_first(expert_idx, held.get(), &gate, &up));
    GCMOE_RETURN_IF_ERROR(read_second(expert_idx, held.get(), &down));
    StoredExpert expert;
    expert.gate = gate;
    expert.up = up;
    expert.down = down;
    GCMOE_RETURN_IF_ERROR(read_biases(expert_idx, held.get(), &expert));
    expert.keep_alive = held;
    *out = std::move(expert);
    return {};
}

Status StackedSource::shared_expert(StoredExpert* out) {
    const MatrixRoles roles = matrix_roles(shared_names_.words, GateUpOrder::kW1GateW3Up);
    return read_shared(folder_.get(), shared_names_, info_, roles, out);
}

}  // namespace gcmoe::checkpoint
