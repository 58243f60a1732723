#include "checkpoint/synth_plan.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/json_text.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/tensor_names.hpp"
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
    if (is_stacked(layout_of(options.format)) && static_cast<int>(out->size()) != num_experts) {
        return {Code::kBadInput,
                fmt::format("{} of {} experts were asked for, but layout {} "
                            "stacks all of them in one tensor",
                            out->size(), num_experts, layout_name(layout_of(options.format)))};
    }
    return {};
}

TensorNames names_of(const SynthOptions& options) {
    if (layout_of(options.format) == TensorLayout::kDeepseek) {
        return {fmt::format("layers.{}.ffn.", options.layer_idx), kDeepseekWords};
    }
    return {fmt::format("model.layers.{}.mlp.", options.layer_idx), kHuggingFaceWords};
}

struct MatrixSize {
    int rows;
    int cols;
};

// Lists the tensors of a layer in writing order.
class TensorLister {
  public:
    explicit TensorLister(const SynthOptions& options)
        : layer_(options.layer),
          format_(routed_format_of(options.format)),
          names_(names_of(options)) {}

    void add_shared() {
        for (const SynthMatrix matrix : kSeparate) {
            const auto name = [&](const char* part) { return names_.shared(word(matrix), part); };
            const MatrixSize size = size_of(matrix, layer_.shape.shared_inter);
            if (format_ == RoutedFormat::kBf16) {
                add({{name("weight"), Dtype::kBf16, {size.rows, size.cols}},
                     kSharedExpertIdx,
                     matrix,
                     TensorPart::kWeight,
                     0});
            } else {
                add_fp8(name("weight"), name(names_.words.scale), kSharedExpertIdx, matrix, size);
            }
        }
    }

    void add_expert(int expert_idx) {
        for (const SynthMatrix matrix : kSeparate) {
            const auto name = [&](const char* part) {
                return names_.expert(expert_idx, word(matrix), part);
            };
            const MatrixSize size = size_of(matrix, layer_.shape.inter);
            const auto [rows, cols] = size;
            switch (format_) {
                case RoutedFormat::kMxfp4:
                    add({{name("weight"), Dtype::kI8, {rows, cols / 2}},
                         expert_idx,
                         matrix,
                         TensorPart::kWeight,
                         0});
                    add({{name(names_.words.scale), Dtype::kF8E8m0, {rows, cols / kMxfp4Group}},
                         expert_idx,
                         matrix,
                         TensorPart::kScale,
                         0});
                    break;
                case RoutedFormat::kFp8:
                    add_fp8(name("weight"), name(names_.words.scale), expert_idx, matrix, size);
                    break;
                case RoutedFormat::kBf16:
                    add({{name("weight"), Dtype::kBf16, {rows, cols}},
                         expert_idx,
                         matrix,
                         TensorPart::kWeight,
                         0});
                    break;
            }
            if (!layer_.biases) continue;
            add({{name("bias"), Dtype::kBf16, {rows}}, expert_idx, matrix, TensorPart::kBias, 0});
        }
    }

    void add_stacks(const StackedNames& names) {
        const std::string prefix = names_.prefix + "experts.";
        const Shape& shape = layer_.shape;
        add_stack(names, prefix + names.first, prefix + names.first_scale, SynthMatrix::kGateAndUp,
                  {2 * shape.inter, shape.hidden});
        if (layer_.biases) add_stacked_bias(prefix + names.first_bias, SynthMatrix::kGateAndUp);
        add_stack(names, prefix + names.second, prefix + names.second_scale, SynthMatrix::kDown,
                  {shape.hidden, shape.inter});
        if (layer_.biases) add_stacked_bias(prefix + names.second_bias, SynthMatrix::kDown);
    }

    std::vector<SynthTensor> take() { return std::move(tensors_); }

  private:
    static constexpr SynthMatrix kSeparate[] = {SynthMatrix::kGate, SynthMatrix::kUp,
                                                SynthMatrix::kDown};

    [[nodiscard]] std::string word(SynthMatrix matrix) const {
        return names_.words.matrices[static_cast<std::size_t>(matrix)];
    }

    [[nodiscard]] MatrixSize size_of(SynthMatrix matrix, int inter) const {
        const int hidden = layer_.shape.hidden;
        return matrix == SynthMatrix::kDown ? MatrixSize{hidden, inter} : MatrixSize{inter, hidden};
    }

    void add_fp8(const std::string& weight, const std::string& scale, int expert_idx,
                 SynthMatrix matrix, MatrixSize size) {
        const GridBlock block = grid_block(layer_.shared_grid);
        const bool is_fp32 = layer_.shared_grid == ScaleGrid::kFp32Block128;
        // Floats first: every size here is a multiple of 4, so they stay aligned.
        add({{scale,
              is_fp32 ? Dtype::kF32 : Dtype::kF8E8m0,
              {ceil_div(size.rows, block.rows), ceil_div(size.cols, block.cols)}},
             expert_idx,
             matrix,
             TensorPart::kScale,
             0});
        add({{weight, Dtype::kF8E4m3, {size.rows, size.cols}},
             expert_idx,
             matrix,
             TensorPart::kWeight,
             0});
    }

    void add_stack(const StackedNames& names, const std::string& weight, const std::string& scale,
                   SynthMatrix matrix, MatrixSize size) {
        const std::int64_t num_experts = layer_.shape.num_experts;
        const std::int64_t num_groups = size.cols / kMxfp4Group;
        std::vector<std::int64_t> shape = {num_experts, size.rows, size.cols / 2};
        if (names.has_blocks) shape = {num_experts, size.rows, num_groups, kMxfp4Group / 2};
        add({{weight, Dtype::kU8, std::move(shape)}, kAllExperts, matrix, TensorPart::kWeight, 0});
        add({{scale, Dtype::kU8, {num_experts, size.rows, num_groups}},
             kAllExperts,
             matrix,
             TensorPart::kScale,
             0});
    }

    void add_stacked_bias(const std::string& name, SynthMatrix matrix) {
        const int rows =
            matrix == SynthMatrix::kDown ? layer_.shape.hidden : 2 * layer_.shape.inter;
        add({{name, Dtype::kBf16, {layer_.shape.num_experts, rows}},
             kAllExperts,
             matrix,
             TensorPart::kBias,
             0});
    }

    void add(SynthTensor tensor) {
        const bool has_size = tensor_bytes(tensor.spec.dtype, tensor.spec.shape, &tensor.num_bytes);
        GCMOE_CHECK(has_size, tensor.spec.name);
        tensors_.push_back(std::move(tensor));
    }

    const GeneratedLayer& layer_;
    RoutedFormat format_;
    TensorNames names_;
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

// Alpha and beta only where they are not what the layout implies.
void set_activation_fields(const SynthOptions& options, Json* config) {
    const Activation& activation = options.layer.shape.activation;
    const bool is_gpt_oss = options.format == CheckpointFormat::kGptOss;
    if (std::isfinite(activation.clamp)) (*config)["swiglu_limit"] = activation.clamp;
    if (activation.alpha != (is_gpt_oss ? kGptOssActivation.alpha : 1.0F)) {
        (*config)["swiglu_alpha"] = activation.alpha;
    }
    if (activation.beta != (is_gpt_oss ? kGptOssActivation.beta : 0.0F)) {
        (*config)["swiglu_beta"] = activation.beta;
    }
}

// The fields of a layer, at the top or in text_config of a V4.1 config.
void set_layer_fields(const SynthOptions& options, Json* config) {
    const Shape& shape = options.layer.shape;
    const bool is_gpt_oss = options.format == CheckpointFormat::kGptOss;
    (*config)["hidden_size"] = shape.hidden;
    (*config)[is_gpt_oss ? "intermediate_size" : "moe_intermediate_size"] = shape.inter;
    (*config)[is_gpt_oss ? "num_local_experts" : "n_routed_experts"] = shape.num_experts;
    (*config)["num_experts_per_tok"] = shape.topk;
    (*config)["num_hidden_layers"] = options.layer_idx + 1;
    (*config)["routed_scaling_factor"] = options.routed_scale;
    set_activation_fields(options, config);
    if (is_gpt_oss) return;
    const bool is_whole = shape.shared_inter % shape.inter == 0;
    (*config)["n_shared_experts"] = is_whole ? shape.shared_inter / shape.inter : 1;
    if (!is_whole) (*config)["shared_expert_intermediate_size"] = shape.shared_inter;
}

void set_quantization_fields(const SynthOptions& options, Json* config) {
    if (options.format == CheckpointFormat::kBf16) return;
    if (options.format == CheckpointFormat::kGptOss) {
        (*config)["quantization_config"] = {{"quant_method", "mxfp4"}};
        return;
    }
    const GridBlock block = grid_block(options.layer.shared_grid);
    const bool is_fp32 = options.layer.shared_grid == ScaleGrid::kFp32Block128;
    (*config)["quantization_config"] = {{"quant_method", "fp8"},
                                        {"fmt", "e4m3"},
                                        {"activation_scheme", "dynamic"},
                                        {"scale_fmt", is_fp32 ? "float32" : "ue8m0"},
                                        {"weight_block_size", {block.rows, block.cols}}};
    if (options.format != CheckpointFormat::kBlockFp8) (*config)["expert_dtype"] = "fp4";
}

}  // namespace

TensorLayout layout_of(CheckpointFormat format) {
    switch (format) {
        case CheckpointFormat::kDeepseekV4:
        case CheckpointFormat::kDeepseekV41:
            return TensorLayout::kDeepseek;
        case CheckpointFormat::kBlockFp8:
        case CheckpointFormat::kBf16:
            return TensorLayout::kHuggingFace;
        case CheckpointFormat::kGptOss:
            return TensorLayout::kGptOss;
        case CheckpointFormat::kW13GateFirst:
        case CheckpointFormat::kW13UpFirst:
            return TensorLayout::kStackedW13;
    }
    GCMOE_CHECK(false, static_cast<int>(format));
}

RoutedFormat routed_format_of(CheckpointFormat format) {
    if (format == CheckpointFormat::kBlockFp8) return RoutedFormat::kFp8;
    return format == CheckpointFormat::kBf16 ? RoutedFormat::kBf16 : RoutedFormat::kMxfp4;
}

Status make_synth_plan(const SynthOptions& options, SynthPlan* out) {
    if (options.layer_idx < 0) {
        return {Code::kBadInput, fmt::format("layer {} is negative", options.layer_idx)};
    }
    *out = {};
    GCMOE_RETURN_IF_ERROR(choose_experts(options, &out->experts));
    if (options.format == CheckpointFormat::kGptOss && options.layer.shape.shared_inter > 0) {
        return {Code::kBadInput, "layout gpt-oss has no shared expert"};
    }
    TensorLister lister(options);
    if (options.layer.shape.shared_inter > 0) lister.add_shared();
    if (is_stacked(layout_of(options.format))) {
        lister.add_stacks(options.format == CheckpointFormat::kGptOss ? kGptOssNames : kW13Names);
    } else {
        for (const int expert_idx : out->experts) lister.add_expert(expert_idx);
    }
    split_into_shards(lister.take(), options.shard_bytes, out);
    return {};
}

std::string synth_config_text(const SynthOptions& options) {
    Json config;
    config["gcmoe_weight_scales"] = options.layer.weight_scales;
    switch (options.format) {
        case CheckpointFormat::kDeepseekV4:
        case CheckpointFormat::kW13GateFirst:
        case CheckpointFormat::kW13UpFirst:
            config["model_type"] = "deepseek_v4";
            break;
        case CheckpointFormat::kDeepseekV41:
            config["model_type"] = "deepseek_v41";
            break;
        case CheckpointFormat::kBlockFp8:
        case CheckpointFormat::kBf16:
            config["model_type"] = "deepseek_v3";
            break;
        case CheckpointFormat::kGptOss:
            config["model_type"] = "gpt_oss";
            break;
    }
    const bool is_nested = options.format == CheckpointFormat::kDeepseekV41;
    set_layer_fields(options, is_nested ? &config["text_config"] : &config);
    set_quantization_fields(options, &config);
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
