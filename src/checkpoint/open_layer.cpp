#include "checkpoint/open_layer.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/config_checks.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/per_expert_source.hpp"
#include "checkpoint/stacked_source.hpp"
#include "checkpoint/tensor_names.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr std::array<const char*, 4> kOuterPrefixes = {"", "model.", "language_model.model.",
                                                       "model.language_model."};
constexpr std::array<const char*, 2> kInnerNames = {"ffn", "mlp"};

Status fail(const std::string& where, const std::string& reason) {
    return {Code::kBadCheckpoint, fmt::format("{}: {}", quote(where), reason)};
}

Status find_prefix(const CheckpointFolder& folder, int layer, std::string* out) {
    std::vector<std::string> found;
    for (const char* outer : kOuterPrefixes) {
        for (const char* inner : kInnerNames) {
            const std::string prefix = fmt::format("{}layers.{}.{}.", outer, layer, inner);
            if (has_prefix(folder, prefix + "experts.")) found.push_back(prefix);
        }
    }
    if (found.size() > 1) {
        return fail(folder.folder(), fmt::format("tensors stand under both {} and {}",
                                                 quote(found[0]), quote(found[1])));
    }
    if (found.empty()) {
        const auto& names = folder.file_of_tensor();
        return fail(folder.folder(),
                    fmt::format("no tensor of layer {} ('layers.{}.ffn.experts.*' or "
                                "'layers.{}.mlp.experts.*', also behind 'model.') among its {}; "
                                "the first is {}",
                                layer, layer, layer, names.size(),
                                names.empty() ? "none" : quote(names.begin()->first)));
    }
    *out = found.front();
    return {};
}

bool has_matrix(const CheckpointFolder& folder, const std::string& prefix, const char* matrix) {
    const std::string tail = fmt::format(".{}.weight", matrix);
    const auto& names = folder.file_of_tensor();
    for (auto entry = names.lower_bound(prefix);
         entry != names.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
        const std::string& name = entry->first;
        if (name.size() > tail.size() &&
            name.compare(name.size() - tail.size(), tail.size(), tail) == 0) {
            return true;
        }
    }
    return false;
}

Status find_layout(const CheckpointFolder& folder, LayerInfo* info) {
    const std::string experts = info->prefix + "experts.";
    const std::pair<TensorLayout, bool> candidates[] = {
        {TensorLayout::kDeepseek, has_matrix(folder, experts, kDeepseekWords.matrices[0])},
        {TensorLayout::kHuggingFace, has_matrix(folder, experts, kHuggingFaceWords.matrices[0])},
        {TensorLayout::kGptOss, folder.contains(experts + kGptOssNames.first)},
        {TensorLayout::kStackedW13, folder.contains(experts + kW13Names.first)},
    };
    std::vector<TensorLayout> found;
    for (const auto& [layout, is_there] : candidates) {
        if (is_there) found.push_back(layout);
    }
    if (found.size() == 1) {
        info->layout = found.front();
        return {};
    }
    if (found.size() > 1) {
        return fail(folder.folder(),
                    fmt::format("{} has tensors of two layouts, {} and {}", quote(experts),
                                layout_name(found[0]), layout_name(found[1])));
    }
    return fail(folder.folder(),
                fmt::format("no layout is known whose experts have a tensor {}; needs E.w1.weight, "
                            "E.gate_proj.weight, {} or {} behind {}",
                            quote(folder.file_of_tensor().lower_bound(experts)->first),
                            kGptOssNames.first, kW13Names.first, quote(experts)));
}

// The order of gate and up that the layout needs, or why the one given does not fit.
Status choose_order(const ReadOptions& options, const LayerInfo& info, GateUpOrder* out) {
    *out = options.order.value_or(GateUpOrder::kW1GateW3Up);
    const bool names_tell =
        info.layout == TensorLayout::kHuggingFace || info.layout == TensorLayout::kGptOss;
    if (names_tell && options.order.has_value()) {
        return {Code::kBadInput,
                fmt::format("an order of gate and up was given, but layout {} has its own",
                            layout_name(info.layout))};
    }
    if (info.layout == TensorLayout::kStackedW13 && !options.order.has_value()) {
        return {Code::kBadInput,
                fmt::format("layout w13 stacks gate and up in an order that no file tells: say "
                            "which half of {} is the gate",
                            quote(info.prefix + "experts." + kW13Names.first))};
    }
    return {};
}

Status open_per_expert(std::unique_ptr<CheckpointFolder> folder, GateUpOrder order,
                       const ModelConfig& config, LayerInfo* info,
                       std::unique_ptr<StoredSource>* out) {
    const bool is_deepseek = info->layout == TensorLayout::kDeepseek;
    const TensorNames names{info->prefix, is_deepseek ? kDeepseekWords : kHuggingFaceWords};
    GCMOE_RETURN_IF_ERROR(measure_per_expert(folder.get(), names, info));
    GCMOE_RETURN_IF_ERROR(measure_shared(folder.get(), names, info));
    GCMOE_RETURN_IF_ERROR(apply_config(config, info));
    *out = std::make_unique<PerExpertSource>(std::move(folder), names, *info, order);
    return {};
}

Status open_stacked_layer(std::unique_ptr<CheckpointFolder> folder, GateUpOrder order,
                          const ModelConfig& config, LayerInfo* info,
                          std::unique_ptr<StoredSource>* out) {
    const bool is_gpt_oss = info->layout == TensorLayout::kGptOss;
    StackedTensors tensors;
    GCMOE_RETURN_IF_ERROR(open_stacked(folder.get(), info->prefix,
                                       is_gpt_oss ? kGptOssNames : kW13Names, info, &tensors));
    TensorNames names{info->prefix, kHuggingFaceWords};
    if (has_prefix(*folder, names.prefix + "shared_experts.w")) names.words = kDeepseekWords;
    GCMOE_RETURN_IF_ERROR(measure_shared(folder.get(), names, info));
    GCMOE_RETURN_IF_ERROR(apply_config(config, info));
    const StackedRows rows = is_gpt_oss                          ? StackedRows::kInTurn
                             : order == GateUpOrder::kW1GateW3Up ? StackedRows::kGateFirst
                                                                 : StackedRows::kUpFirst;
    *out =
        std::make_unique<StackedSource>(std::move(folder), std::move(tensors), rows, names, *info);
    return {};
}

// Ok if the layer needs no quantising, or may be.
Status check_leave(const std::string& folder, const LayerInfo& info, bool quantise) {
    if (quantise) return {};
    if (info.routed_format != RoutedFormat::kMxfp4) {
        return fail(folder, fmt::format("the experts of {} are {}; routed experts must be MXFP4, "
                                        "which quantising makes of them",
                                        quote(info.prefix), format_name(info.routed_format)));
    }
    if (!info.shared_is_bf16) return {};
    return fail(folder, fmt::format("the shared expert of {} is BF16; it must be FP8, which "
                                    "quantising makes of it",
                                    quote(info.prefix)));
}

}  // namespace

Status open_checkpoint_layer(const std::string& folder, const ReadOptions& options,
                             OpenedLayer* out) {
    if (options.layer < 0) {
        return {Code::kBadInput, fmt::format("layer {} is negative", options.layer)};
    }
    std::unique_ptr<CheckpointFolder> checkpoint;
    GCMOE_RETURN_IF_ERROR(CheckpointFolder::open(folder, &checkpoint));
    ModelConfig config;
    GCMOE_RETURN_IF_ERROR(read_model_config(folder, &config));
    OpenedLayer found;
    LayerInfo* info = &found.info;
    GCMOE_RETURN_IF_ERROR(find_prefix(*checkpoint, options.layer, &info->prefix));
    GCMOE_RETURN_IF_ERROR(find_layout(*checkpoint, info));
    GateUpOrder order = GateUpOrder::kW1GateW3Up;
    GCMOE_RETURN_IF_ERROR(choose_order(options, *info, &order));
    std::unique_ptr<StoredSource> stored;
    GCMOE_RETURN_IF_ERROR(
        is_stacked(info->layout)
            ? open_stacked_layer(std::move(checkpoint), order, config, info, &stored)
            : open_per_expert(std::move(checkpoint), order, config, info, &stored));
    GCMOE_RETURN_IF_ERROR(check_leave(folder, *info, options.quantise));
    auto source = std::make_unique<QuantisedSource>(std::move(stored));
    if (info->routed_format != RoutedFormat::kMxfp4 || info->shared_is_bf16) {
        found.quantised = source->report();
    }
    found.source = std::move(source);
    *out = std::move(found);
    return {};
}

}  // namespace gcmoe::checkpoint
