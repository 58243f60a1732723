#include "checkpoint/deepseek_layout.hpp"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/deepseek_names.hpp"
#include "checkpoint/deepseek_source.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/model_config.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

constexpr int kMaxExperts = 1 << 20;
constexpr std::int64_t kMaxWidth = 1 << 20;  // of hidden and inter

Status fail(const std::string& where, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("{}: {}", quote(where), reason)};
}

bool starts_with(const std::string& text, const std::string& prefix) {
    return text.compare(0, prefix.size(), prefix) == 0;
}

// True if a tensor's name begins so.
bool has_prefix(const CheckpointFolder& folder, const std::string& prefix) {
    const auto found = folder.file_of_tensor().lower_bound(prefix);
    return found != folder.file_of_tensor().end() && starts_with(found->first, prefix);
}

Status find_names(const CheckpointFolder& folder, int layer, DeepseekNames* out) {
    const std::string plain = fmt::format("layers.{}.ffn.", layer);
    const std::string nested = "model." + plain;
    const bool has_plain = has_prefix(folder, plain + "experts.");
    const bool has_nested = has_prefix(folder, nested + "experts.");
    if (has_plain && has_nested) {
        return fail(folder.folder(),
                    fmt::format("tensors stand under both {} and {}", quote(plain), quote(nested)));
    }
    if (!has_plain && !has_nested) {
        const auto& names = folder.file_of_tensor();
        return fail(
            folder.folder(),
            fmt::format("no tensor of layer {} ({} or {}) among its {}; the first is {}", layer,
                        quote(plain + "experts.*"), quote(nested + "experts.*"), names.size(),
                        names.empty() ? "none" : quote(names.begin()->first)));
    }
    out->prefix = has_plain ? plain : nested;
    return {};
}

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

Status find_experts(const CheckpointFolder& folder, LayerInfo* info) {
    const std::string prefix = info->prefix + "experts.";
    const auto& names = folder.file_of_tensor();
    std::set<int> present;
    for (auto entry = names.lower_bound(prefix);
         entry != names.end() && starts_with(entry->first, prefix); ++entry) {
        const int expert_idx = expert_of_name(entry->first, prefix.size());
        if (expert_idx < 0) {
            return fail(folder.folder(), fmt::format("tensor {} has no expert number below {}",
                                                     quote(entry->first), kMaxExperts));
        }
        present.insert(expert_idx);
    }
    info->present_experts.assign(present.begin(), present.end());
    return {};
}

// Hidden and inter from the first expert that has a w1.
Status measure_experts(CheckpointFolder* folder, const DeepseekNames& names, LayerInfo* info) {
    for (const int expert_idx : info->present_experts) {
        const std::string name = names.expert(expert_idx, "w1", "weight");
        if (!folder->contains(name)) continue;
        TensorView weight;
        GCMOE_RETURN_IF_ERROR(folder->tensor(name, &weight));
        const std::string what = fmt::format("tensor {}: {} {}", quote(name),
                                             dtype_name(weight.dtype), shape_text(weight.shape));
        if (weight.dtype != Dtype::kI8 && weight.dtype != Dtype::kU8) {
            return fail(weight.path, what + ": routed experts must be MXFP4 in I8 or U8");
        }
        if (weight.shape.size() != 2 || weight.shape[0] < 1 || weight.shape[0] > kMaxWidth ||
            weight.shape[1] < 1 || weight.shape[1] > kMaxWidth / 2 ||
            weight.shape[0] % kMxfp4Group != 0 || weight.shape[1] * 2 % kMxfp4Group != 0) {
            return fail(weight.path, fmt::format("{} is not (inter, hidden / 2) with inter and "
                                                 "hidden multiples of {} up to {}",
                                                 what, kMxfp4Group, kMaxWidth));
        }
        info->inter = static_cast<int>(weight.shape[0]);
        info->hidden = static_cast<int>(weight.shape[1]) * 2;
        info->has_bias = folder->contains(names.expert(expert_idx, "w1", "bias"));
        return {};
    }
    return fail(folder->folder(), fmt::format("no expert under {} has a w1.weight",
                                              quote(names.prefix + "experts.")));
}

Status measure_shared(CheckpointFolder* folder, const DeepseekNames& names, LayerInfo* info) {
    if (!has_prefix(*folder, names.prefix + "shared_experts.")) return {};
    TensorView weight;
    TensorView scale;
    GCMOE_RETURN_IF_ERROR(folder->tensor(names.shared("w1", "weight"), &weight));
    GCMOE_RETURN_IF_ERROR(folder->tensor(names.shared("w1", "scale"), &scale));
    if (weight.shape.size() != 2 || weight.shape[0] < 1 || weight.shape[0] > kMaxWidth ||
        weight.shape[0] % kMxfp4Group != 0 || weight.shape[1] != info->hidden) {
        return fail(weight.path,
                    fmt::format("tensor {}: shape {} is not (shared_inter, {}) with shared_inter a "
                                "multiple of {} up to {}",
                                quote(weight.name), shape_text(weight.shape), info->hidden,
                                kMxfp4Group, kMaxWidth));
    }
    info->shared_inter = static_cast<int>(weight.shape[0]);
    return find_scale_grid(scale, info->shared_inter, info->hidden, &info->shared_grid);
}

// An optional count of the config against what the tensors say.
Status check_count(const ModelConfig& config, const char* field, const std::optional<int>& said,
                   int measured) {
    if (!said.has_value() || *said == measured) return {};
    return fail(config.path,
                fmt::format("{} = {}, but the tensors say {}", field, *said, measured));
}

Status check_shared(const ModelConfig& config, const LayerInfo& info) {
    if (!config.n_shared_experts.has_value()) return {};
    const int num_shared = *config.n_shared_experts;
    if ((num_shared == 0) != (info.shared_inter == 0)) {
        return fail(config.path, fmt::format("n_shared_experts = {}, but the tensors say a shared "
                                             "inter of {}",
                                             num_shared, info.shared_inter));
    }
    if (config.shared_expert_intermediate_size.has_value()) {
        return check_count(config, "shared_expert_intermediate_size",
                           config.shared_expert_intermediate_size, info.shared_inter);
    }
    const std::int64_t product = std::int64_t{num_shared} * info.inter;
    if (product != info.shared_inter) {
        return fail(config.path,
                    fmt::format("n_shared_experts = {} of inter {} give {}, but the tensors say a "
                                "shared inter of {}",
                                num_shared, info.inter, product, info.shared_inter));
    }
    return {};
}

Status check_config(const ModelConfig& config, LayerInfo* info) {
    const std::string& dtype = config.expert_dtype;
    if (!dtype.empty() && dtype != "fp4" && dtype != "mxfp4") {
        return fail(config.path,
                    fmt::format("expert_dtype = {}, needs 'fp4' or 'mxfp4'", quote(dtype)));
    }
    GCMOE_RETURN_IF_ERROR(check_count(config, "hidden_size", config.hidden_size, info->hidden));
    GCMOE_RETURN_IF_ERROR(
        check_count(config, "moe_intermediate_size", config.moe_intermediate_size, info->inter));
    GCMOE_RETURN_IF_ERROR(check_shared(config, *info));
    const int highest = info->present_experts.back();
    info->num_experts = config.n_routed_experts.value_or(highest + 1);
    if (highest >= info->num_experts) {
        return fail(config.path, fmt::format("n_routed_experts = {}, but there are tensors of "
                                             "expert {}",
                                             info->num_experts, highest));
    }
    info->topk = config.num_experts_per_tok.value_or(0);
    if (info->topk > info->num_experts) {
        return fail(config.path, fmt::format("num_experts_per_tok = {} is above the {} experts",
                                             info->topk, info->num_experts));
    }
    if (config.swiglu_limit.has_value() && *config.swiglu_limit <= 0.0F) {
        return fail(config.path,
                    fmt::format("swiglu_limit = {}, needs a positive clamp", *config.swiglu_limit));
    }
    info->model_type = config.model_type;
    info->clamp = config.swiglu_limit;
    info->alpha = config.swiglu_alpha.value_or(1.0F);
    info->beta = config.swiglu_beta.value_or(0.0F);
    info->routed_scaling_factor = config.routed_scaling_factor;
    return {};
}

}  // namespace

Status open_deepseek_layer(const std::string& folder, int layer, GateUpOrder order, LayerInfo* info,
                           std::unique_ptr<WeightSource>* source) {
    if (layer < 0) {
        return {Code::kBadInput, fmt::format("layer {} is negative", layer)};
    }
    std::unique_ptr<CheckpointFolder> checkpoint;
    GCMOE_RETURN_IF_ERROR(CheckpointFolder::open(folder, &checkpoint));
    ModelConfig config;
    GCMOE_RETURN_IF_ERROR(read_model_config(folder, &config));
    DeepseekNames names;
    GCMOE_RETURN_IF_ERROR(find_names(*checkpoint, layer, &names));
    LayerInfo found;
    found.prefix = names.prefix;
    GCMOE_RETURN_IF_ERROR(find_experts(*checkpoint, &found));
    GCMOE_RETURN_IF_ERROR(measure_experts(checkpoint.get(), names, &found));
    GCMOE_RETURN_IF_ERROR(measure_shared(checkpoint.get(), names, &found));
    GCMOE_RETURN_IF_ERROR(check_config(config, &found));
    *source = std::make_unique<DeepseekSource>(std::move(checkpoint), names, found, order);
    *info = std::move(found);
    return {};
}

Shape layer_shape(const LayerInfo& info, int num_ranks) {
    Shape shape;
    shape.hidden = info.hidden;
    shape.inter = info.inter;
    shape.num_experts = info.num_experts;
    shape.topk = info.topk;
    shape.num_ranks = num_ranks;
    shape.shared_inter = info.shared_inter;
    shape.has_bias = info.has_bias;
    if (info.clamp.has_value()) shape.activation.clamp = *info.clamp;
    shape.activation.alpha = info.alpha;
    shape.activation.beta = info.beta;
    return shape;
}

}  // namespace gcmoe::checkpoint
