// What the tensors and config.json of a checkpoint say about one layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// Which matrix is the gate where the names do not tell: w1 and w3 of DeepSeek (its own files:
// kW1GateW3Up), first and second half of a stacked w13. Nothing in a file tells the two apart.
enum class GateUpOrder : std::uint8_t { kW1GateW3Up, kW1UpW3Gate };

// How the tensors are named and cut. All names start with LayerInfo::prefix; E = expert.
enum class TensorLayout : std::uint8_t {
    kDeepseek,     // experts.E.{w1,w3,w2}.{weight,scale}
    kHuggingFace,  // experts.E.{gate,up,down}_proj.{weight,weight_scale_inv}
    kGptOss,       // experts.{gate_up,down}_proj_{blocks,scales,bias}, gate and up rows in turn
    kStackedW13,   // experts.{w13,w2}_{weight,weight_scale}, gate and up one after the other
};

// Layouts with one tensor for all experts.
[[nodiscard]] constexpr bool is_stacked(TensorLayout layout) {
    return layout == TensorLayout::kGptOss || layout == TensorLayout::kStackedW13;
}

// What gpt-oss fixes in its code.
inline constexpr Activation kGptOssActivation = {7.0F, 1.702F, 1.0F};

// The number format of the routed experts' weights in the file.
enum class RoutedFormat : std::uint8_t { kMxfp4, kFp8, kBf16 };

struct LayerInfo {
    TensorLayout layout = TensorLayout::kDeepseek;
    RoutedFormat routed_format = RoutedFormat::kMxfp4;
    std::string prefix;      // "layers.3.ffn."
    std::string model_type;  // "deepseek_v4"
    int hidden = 0;
    int inter = 0;
    int num_experts = 0;               // config's count, else the highest expert + 1
    std::vector<int> present_experts;  // with at least one tensor, ascending
    int topk = 0;                      // 0 if the config lacks it
    int shared_inter = 0;              // 0 without a shared expert
    bool shared_is_bf16 = false;       // else FP8
    // Of a layer with a shared expert: as the file has it, or as BF16 weights are quantised.
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;
    bool has_bias = false;
    std::optional<float> clamp;  // swiglu_limit; empty if the config lacks it
    float alpha = 1.0F;
    float beta = 0.0F;
    std::optional<float> routed_scaling_factor;
};

// Which layer of which source weights are: two layers have equal sizes more often than not.
struct LayerIdentity {
    std::string model;  // "deepseek_v4"; for people, not compared
    int layer_idx = 0;
    std::uint64_t fingerprint = 0;  // see checkpoint/layer_identity.hpp

    [[nodiscard]] bool is_same_layer(const LayerIdentity& other) const {
        return layer_idx == other.layer_idx && fingerprint == other.fingerprint;
    }
    // "layer 3 of 'deepseek_v4', fingerprint 0123456789abcdef".
    [[nodiscard]] std::string text() const;
};

// The word for people: "deepseek", "huggingface", "gpt-oss", "w13".
[[nodiscard]] const char* layout_name(TensorLayout layout);
// "MXFP4", "FP8", "BF16".
[[nodiscard]] const char* format_name(RoutedFormat format);

// The layer over num_ranks ranks. A config without swiglu_limit gives no clamp; the rest of Shape
// (activation scale, weight placement) keeps its defaults.
[[nodiscard]] Shape layer_shape(const LayerInfo& info, int num_ranks);

}  // namespace gcmoe::checkpoint
