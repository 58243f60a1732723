#include "checkpoint/per_expert_source.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "checkpoint/message.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

constexpr int kMaxExperts = 1 << 20;
constexpr std::size_t kMaxShownExperts = 16;

// The E of "<prefix>experts.E.<...>", or -1 if that is not a plain number.
int expert_of_name(const std::string& name, std::size_t prefix_length) {
    int expert_idx = 0;
    std::size_t position = prefix_length;
    for (; position < name.size() && name[position] != '.'; ++position) {
        const char digit = name[position];
        const bool leads_with_zero = position == prefix_length + 1 && name[prefix_length] == '0';
        if (digit < '0' || digit > '9' || leads_with_zero) return -1;
        expert_idx = expert_idx * 10 + (digit - '0');
        if (expert_idx >= kMaxExperts) return -1;
    }
    const bool is_number = position > prefix_length && position < name.size();
    return is_number ? expert_idx : -1;
}

Status find_experts(const CheckpointFolder& folder, const TensorNames& names, LayerInfo* info) {
    const std::string prefix = names.prefix + "experts.";
    const auto& files = folder.file_of_tensor();
    std::set<int> present;
    for (auto entry = files.lower_bound(prefix);
         entry != files.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
        const int expert_idx = expert_of_name(entry->first, prefix.size());
        if (expert_idx < 0) {
            return {Code::kBadCheckpoint,
                    fmt::format("{}: tensor {} has no expert number below {}",
                                quote(folder.folder()), quote(entry->first), kMaxExperts)};
        }
        present.insert(expert_idx);
    }
    info->present_experts.assign(present.begin(), present.end());
    return {};
}

// Format, hidden and inter from a gate or up matrix.
Status measure_weight(const StoredTensor& weight, LayerInfo* info) {
    switch (weight.dtype) {
        case Dtype::kI8:
        case Dtype::kU8:
            info->routed_format = RoutedFormat::kMxfp4;
            break;
        case Dtype::kF8E4m3:
            info->routed_format = RoutedFormat::kFp8;
            break;
        case Dtype::kBf16:
            info->routed_format = RoutedFormat::kBf16;
            break;
        default:
            return bad_tensor(weight,
                              fmt::format("{} {}: routed experts must be MXFP4 in I8 or "
                                          "U8, or F8_E4M3 or BF16 that are quantised",
                                          dtype_name(weight.dtype), shape_text(weight.shape)));
    }
    const int packed = info->routed_format == RoutedFormat::kMxfp4 ? 2 : 1;
    if (weight.shape.size() != 2 || weight.shape[0] < 1 || weight.shape[0] > kMaxWidth ||
        weight.shape[1] < 1 || weight.shape[1] > kMaxWidth / packed ||
        weight.shape[0] % kMxfp4Group != 0 || weight.shape[1] * packed % kMxfp4Group != 0) {
        return bad_tensor(weight,
                          fmt::format("{} {} is not (inter, hidden{}) with inter and hidden "
                                      "multiples of {} up to {}",
                                      dtype_name(weight.dtype), shape_text(weight.shape),
                                      packed == 2 ? " / 2" : "", kMxfp4Group, kMaxWidth));
    }
    info->inter = static_cast<int>(weight.shape[0]);
    info->hidden = static_cast<int>(weight.shape[1]) * packed;
    return {};
}

}  // namespace

Status measure_per_expert(CheckpointFolder* folder, const TensorNames& names, LayerInfo* info) {
    GCMOE_RETURN_IF_ERROR(find_experts(*folder, names, info));
    const char* first = names.words.matrices[0];
    for (const int expert_idx : info->present_experts) {
        const std::string name = names.expert(expert_idx, first, "weight");
        if (!folder->contains(name)) continue;
        StoredTensor weight;
        GCMOE_RETURN_IF_ERROR(folder->tensor(name, &weight));
        GCMOE_RETURN_IF_ERROR(measure_weight(weight, info));
        info->has_bias = folder->contains(names.expert(expert_idx, first, "bias"));
        return {};
    }
    return {Code::kBadCheckpoint,
            fmt::format("{}: no expert under {} has a {}.weight", quote(folder->folder()),
                        quote(names.prefix + "experts."), first)};
}

PerExpertSource::PerExpertSource(std::unique_ptr<CheckpointFolder> folder, TensorNames names,
                                 const LayerInfo& info, GateUpOrder order)
    : folder_(std::move(folder)),
      names_(std::move(names)),
      info_(info),
      roles_(matrix_roles(names_.words, order)) {}

Status PerExpertSource::missing_expert(int expert_idx, const std::string& name) const {
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

Status PerExpertSource::tensor_of(int expert_idx, const std::string& matrix, const char* part,
                                  StoredTensor* out) {
    const std::string name = names_.expert(expert_idx, matrix, part);
    if (!folder_->contains(name)) return missing_expert(expert_idx, name);
    return folder_->tensor(name, out);
}

Status PerExpertSource::read_matrix(int expert_idx, const std::string& matrix,
                                    const MatrixPlace& place, HeldBytes* held, StoredView* out) {
    StoredTensor weight;
    GCMOE_RETURN_IF_ERROR(tensor_of(expert_idx, matrix, "weight", &weight));
    if (info_.routed_format == RoutedFormat::kBf16) {
        Bf16View view;
        GCMOE_RETURN_IF_ERROR(view_bf16(weight, place, held, &view));
        *out = view;
        return {};
    }
    StoredTensor scale;
    GCMOE_RETURN_IF_ERROR(tensor_of(expert_idx, matrix, names_.words.scale, &scale));
    if (info_.routed_format == RoutedFormat::kFp8) {
        Fp8View view;
        GCMOE_RETURN_IF_ERROR(view_fp8(weight, scale, place, held, &view));
        *out = view;
        return {};
    }
    Mxfp4View view;
    GCMOE_RETURN_IF_ERROR(view_mxfp4(weight, scale, place, held, &view));
    *out = view;
    return {};
}

Status PerExpertSource::read_bias(int expert_idx, const std::string& matrix,
                                  const MatrixPlace& place, HeldBytes* held, const float** out) {
    const std::string name = names_.expert(expert_idx, matrix, "bias");
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
    StoredTensor bias;
    GCMOE_RETURN_IF_ERROR(folder_->tensor(name, &bias));
    GCMOE_RETURN_IF_ERROR(check_dtype(bias, {Dtype::kBf16, Dtype::kF32}));
    GCMOE_RETURN_IF_ERROR(check_shape(bias, {place.rows}));
    std::unique_ptr<float[]> values;
    GCMOE_RETURN_IF_ERROR(copy_biases(bias, 0, place, &values));
    *out = values.get();
    held->floats.push_back(std::move(values));
    return {};
}

Status PerExpertSource::expert(int expert_idx, StoredExpert* out) {
    if (expert_idx < 0 || expert_idx >= info_.num_experts) {
        return {Code::kBadIndex, fmt::format("expert {} is outside [0, {}) of {}", expert_idx,
                                             info_.num_experts, quote(names_.prefix))};
    }
    const auto held = std::make_shared<HeldBytes>();
    StoredExpert expert;
    const auto read = [&](const std::string& matrix, const char* role, StoredView* view,
                          const float** bias) -> Status {
        const bool is_down = view == &expert.down;
        const MatrixPlace place{fmt::format("expert {}, matrix {} ({})", expert_idx, matrix, role),
                                is_down ? info_.hidden : info_.inter,
                                is_down ? info_.inter : info_.hidden};
        GCMOE_RETURN_IF_ERROR(read_matrix(expert_idx, matrix, place, held.get(), view));
        return read_bias(expert_idx, matrix, place, held.get(), bias);
    };
    GCMOE_RETURN_IF_ERROR(read(roles_.gate, "gate", &expert.gate, &expert.gate_bias));
    GCMOE_RETURN_IF_ERROR(read(roles_.up, "up", &expert.up, &expert.up_bias));
    GCMOE_RETURN_IF_ERROR(read(roles_.down, "down", &expert.down, &expert.down_bias));
    expert.keep_alive = held;
    *out = std::move(expert);
    return {};
}

Status PerExpertSource::shared_expert(StoredExpert* out) {
    return read_shared(folder_.get(), names_, info_, roles_, out);
}

}  // namespace gcmoe::checkpoint
