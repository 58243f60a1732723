#include "checkpoint/synth_plan.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/deepseek_names.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/json_text.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

Status choose_experts(const SynthOptions& options, std::vector<int>* out) {
    const int num_experts = options.layer.shape.num_experts;
    *out = options.experts;
    if (out->empty()) {
        for (int expert_idx = 0; expert_idx < num_experts; ++expert_idx) out->push_back(expert_idx);
        return {};
    }
    int smallest = 0;
    for (const int expert_idx : *out) {
        if (expert_idx < smallest || expert_idx >= num_experts) {
            return {Code::kBadInput,
                    fmt::format("experts must be ascending ids below {}; {} stands "
                                "where {} or more is due",
                                num_experts, expert_idx, smallest)};
        }
        smallest = expert_idx + 1;
    }
    return {};
}

// Lists the tensors of a layer in writing order.
class TensorLister {
  public:
    TensorLister(const SynthOptions& options, DeepseekNames names)
        : layer_(options.layer), names_(std::move(names)) {}

    void add_shared() {
        for (int matrix_idx = 0; matrix_idx < 3; ++matrix_idx) {
            const std::string matrix = kMatrixNames[static_cast<std::size_t>(matrix_idx)];
            const auto [rows, cols] = size_of(matrix, layer_.shape.shared_inter);
            const GridBlock block = grid_block(layer_.shared_grid);
            const bool is_fp32 = layer_.shared_grid == ScaleGrid::kFp32Block128;
            const TensorSpec weight = {
                names_.shared(matrix, "weight"), Dtype::kF8E4m3, {rows, cols}};
            const TensorSpec scale = {names_.shared(matrix, "scale"),
                                      is_fp32 ? Dtype::kF32 : Dtype::kF8E8m0,
                                      {ceil_div(rows, block.rows), ceil_div(cols, block.cols)}};
            // Floats first: every size here is a multiple of 4, so they stay aligned.
            add({scale, kSharedExpertIdx, matrix_idx, TensorPart::kScale, 0});
            add({weight, kSharedExpertIdx, matrix_idx, TensorPart::kWeight, 0});
        }
    }

    void add_expert(int expert_idx) {
        for (int matrix_idx = 0; matrix_idx < 3; ++matrix_idx) {
            const std::string matrix = kMatrixNames[static_cast<std::size_t>(matrix_idx)];
            const auto [rows, cols] = size_of(matrix, layer_.shape.inter);
            const auto name = [&](const char* part) {
                return names_.expert(expert_idx, matrix, part);
            };
            add({{name("weight"), Dtype::kI8, {rows, cols / 2}},
                 expert_idx,
                 matrix_idx,
                 TensorPart::kWeight,
                 0});
            add({{name("scale"), Dtype::kF8E8m0, {rows, cols / kMxfp4Group}},
                 expert_idx,
                 matrix_idx,
                 TensorPart::kScale,
                 0});
            if (!layer_.biases) continue;
            add({{name("bias"), Dtype::kBf16, {rows}},
                 expert_idx,
                 matrix_idx,
                 TensorPart::kBias,
                 0});
        }
    }

    std::vector<SynthTensor> take() { return std::move(tensors_); }

  private:
    [[nodiscard]] std::pair<int, int> size_of(const std::string& matrix, int inter) const {
        const int hidden = layer_.shape.hidden;
        return matrix == "w2" ? std::pair(hidden, inter) : std::pair(inter, hidden);
    }

    void add(SynthTensor tensor) {
        const bool has_size = tensor_bytes(tensor.spec.dtype, tensor.spec.shape, &tensor.num_bytes);
        GCMOE_CHECK(has_size, tensor.spec.name);
        tensors_.push_back(std::move(tensor));
    }

    const GeneratedLayer& layer_;
    DeepseekNames names_;
    std::vector<SynthTensor> tensors_;
};

void split_into_shards(std::vector<SynthTensor> tensors, std::uint64_t shard_bytes,
                       SynthPlan* plan) {
    std::uint64_t used_bytes = 0;
    for (SynthTensor& tensor : tensors) {
        const bool is_full = shard_bytes > 0 && used_bytes + tensor.num_bytes > shard_bytes;
        if (plan->shards.empty() || (is_full && used_bytes > 0)) {
            plan->shards.emplace_back();
            used_bytes = 0;
        }
        used_bytes += tensor.num_bytes;
        plan->total_bytes += tensor.num_bytes;
        plan->shards.back().tensors.push_back(std::move(tensor));
    }
    const std::size_t num_shards = plan->shards.size();
    for (std::size_t idx = 0; idx < num_shards; ++idx) {
        plan->shards[idx].file_name =
            num_shards == 1 ? kSingleFileName
                            : fmt::format("model-{:05}-of-{:05}.safetensors", idx + 1, num_shards);
    }
}

// The fields of a layer, at the top of a V4 config or in text_config of a V4.1 config.
void set_layer_fields(const SynthOptions& options, Json* config) {
    const Shape& shape = options.layer.shape;
    (*config)["hidden_size"] = shape.hidden;
    (*config)["moe_intermediate_size"] = shape.inter;
    (*config)["n_routed_experts"] = shape.num_experts;
    (*config)["num_experts_per_tok"] = shape.topk;
    (*config)["num_hidden_layers"] = options.layer_idx + 1;
    (*config)["routed_scaling_factor"] = options.routed_scale;
    const bool is_whole = shape.shared_inter % shape.inter == 0;
    (*config)["n_shared_experts"] = is_whole ? shape.shared_inter / shape.inter : 1;
    if (!is_whole) (*config)["shared_expert_intermediate_size"] = shape.shared_inter;
    const Activation& activation = shape.activation;
    if (std::isfinite(activation.clamp)) (*config)["swiglu_limit"] = activation.clamp;
    if (activation.alpha != 1.0F) (*config)["swiglu_alpha"] = activation.alpha;
    if (activation.beta != 0.0F) (*config)["swiglu_beta"] = activation.beta;
}

}  // namespace

Status make_synth_plan(const SynthOptions& options, SynthPlan* out) {
    if (options.layer_idx < 0) {
        return {Code::kBadInput, fmt::format("layer {} is negative", options.layer_idx)};
    }
    *out = {};
    GCMOE_RETURN_IF_ERROR(choose_experts(options, &out->experts));
    TensorLister lister(options, {fmt::format("layers.{}.ffn.", options.layer_idx)});
    if (options.layer.shape.shared_inter > 0) lister.add_shared();
    for (const int expert_idx : out->experts) lister.add_expert(expert_idx);
    split_into_shards(lister.take(), options.shard_bytes, out);
    return {};
}

std::string synth_config_text(const SynthOptions& options) {
    const GridBlock block = grid_block(options.layer.shared_grid);
    const bool is_fp32 = options.layer.shared_grid == ScaleGrid::kFp32Block128;
    Json config;
    config["expert_dtype"] = "fp4";
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"fmt", "e4m3"},
                                     {"activation_scheme", "dynamic"},
                                     {"scale_fmt", is_fp32 ? "float32" : "ue8m0"},
                                     {"weight_block_size", {block.rows, block.cols}}};
    config["gcmoe_weight_scales"] = options.layer.weight_scales;
    switch (options.format) {
        case CheckpointFormat::kDeepseekV4:
            config["model_type"] = "deepseek_v4";
            set_layer_fields(options, &config);
            break;
        case CheckpointFormat::kDeepseekV41:
            config["model_type"] = "deepseek_v41";
            set_layer_fields(options, &config["text_config"]);
            break;
    }
    return config.dump(2) + "\n";
}

std::string synth_index_text(const SynthPlan& plan) {
    Json index;
    index["metadata"]["total_size"] = plan.total_bytes;
    Json& weight_map = index["weight_map"];
    for (const SynthShard& shard : plan.shards) {
        for (const SynthTensor& tensor : shard.tensors) {
            weight_map[tensor.spec.name] = shard.file_name;
        }
    }
    return index.dump(2) + "\n";
}

}  // namespace gcmoe::checkpoint
