#include "checkpoint/config_checks.hpp"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

Status fail(const ModelConfig& config, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("{}: {}", quote(config.path), reason)};
}

// An optional count of the config against what the tensors say.
Status check_count(const ModelConfig& config, const char* field, const std::optional<int>& said,
                   int measured) {
    if (!said.has_value() || *said == measured) return {};
    return fail(config, fmt::format("{} = {}, but the tensors say {}", field, *said, measured));
}

Status check_shared(const ModelConfig& config, const LayerInfo& info) {
    if (!config.n_shared_experts.has_value()) return {};
    const int num_shared = *config.n_shared_experts;
    if ((num_shared == 0) != (info.shared_inter == 0)) {
        return fail(config, fmt::format("n_shared_experts = {}, but the tensors say a shared "
                                        "inter of {}",
                                        num_shared, info.shared_inter));
    }
    if (config.shared_expert_intermediate_size.has_value()) {
        return check_count(config, "shared_expert_intermediate_size",
                           config.shared_expert_intermediate_size, info.shared_inter);
    }
    const std::int64_t product = std::int64_t{num_shared} * info.inter;
    if (product != info.shared_inter) {
        return fail(config,
                    fmt::format("n_shared_experts = {} of inter {} give {}, but the tensors say a "
                                "shared inter of {}",
                                num_shared, info.inter, product, info.shared_inter));
    }
    return {};
}

// The config's count of experts, by whichever name it has.
Status count_experts(const ModelConfig& config, LayerInfo* info) {
    const std::pair<const char*, std::optional<int>> counts[] = {
        {"n_routed_experts", config.n_routed_experts},
        {"num_local_experts", config.num_local_experts},
        {"num_experts", config.num_experts},
    };
    const int highest = info->present_experts.back();
    info->num_experts = highest + 1;
    for (const auto& [field, count] : counts) {
        if (!count.has_value()) continue;
        info->num_experts = *count;
        if (highest >= *count) {
            return fail(config, fmt::format("{} = {}, but there are tensors of expert {}", field,
                                            *count, highest));
        }
        if (is_stacked(info->layout) && highest + 1 != *count) {
            return fail(config, fmt::format("{} = {}, but the tensors stack {} experts", field,
                                            *count, highest + 1));
        }
        break;
    }
    info->topk = config.num_experts_per_tok.value_or(0);
    if (info->topk > info->num_experts) {
        return fail(config, fmt::format("num_experts_per_tok = {} is above the {} experts",
                                        info->topk, info->num_experts));
    }
    return {};
}

Status check_dtype_word(const ModelConfig& config, const LayerInfo& info) {
    const std::string& dtype = config.expert_dtype;
    if (dtype.empty() || info.routed_format == RoutedFormat::kBf16) return {};
    const bool is_fp8 = info.routed_format == RoutedFormat::kFp8;
    const bool fits = is_fp8 ? dtype == "fp8" : dtype == "fp4" || dtype == "mxfp4";
    if (fits) return {};
    return fail(config, fmt::format("expert_dtype = {}, needs {}", quote(dtype),
                                    is_fp8 ? "'fp8'" : "'fp4' or 'mxfp4'"));
}

Status apply_activation(const ModelConfig& config, LayerInfo* info) {
    if (config.swiglu_limit.has_value() && *config.swiglu_limit <= 0.0F) {
        return fail(config,
                    fmt::format("swiglu_limit = {}, needs a positive clamp", *config.swiglu_limit));
    }
    const bool is_gpt_oss = info->layout == TensorLayout::kGptOss;
    info->clamp = config.swiglu_limit;
    if (is_gpt_oss && !info->clamp.has_value()) info->clamp = kGptOssActivation.clamp;
    info->alpha = config.swiglu_alpha.value_or(is_gpt_oss ? kGptOssActivation.alpha : 1.0F);
    info->beta = config.swiglu_beta.value_or(is_gpt_oss ? kGptOssActivation.beta : 0.0F);
    return {};
}

}  // namespace

Status apply_config(const ModelConfig& config, LayerInfo* info) {
    GCMOE_RETURN_IF_ERROR(check_dtype_word(config, *info));
    GCMOE_RETURN_IF_ERROR(check_count(config, "hidden_size", config.hidden_size, info->hidden));
    GCMOE_RETURN_IF_ERROR(
        check_count(config, "moe_intermediate_size", config.moe_intermediate_size, info->inter));
    if (info->layout == TensorLayout::kGptOss) {
        GCMOE_RETURN_IF_ERROR(
            check_count(config, "intermediate_size", config.intermediate_size, info->inter));
    }
    GCMOE_RETURN_IF_ERROR(check_shared(config, *info));
    GCMOE_RETURN_IF_ERROR(count_experts(config, info));
    GCMOE_RETURN_IF_ERROR(apply_activation(config, info));
    info->model_type = config.model_type;
    info->routed_scaling_factor = config.routed_scaling_factor;
    return {};
}

}  // namespace gcmoe::checkpoint
