// DeepSeek V4 and V4.1 checkpoints as a source of expert weights.
//
// Tensors of layer L (prefix "layers.L.ffn." or "model.layers.L.ffn."), H = hidden, I = inter:
//   experts.E.{w1,w3}.weight  (I, H / 2)   I8 or U8, two E2M1, even column in the low nibble
//   experts.E.w2.weight       (H, I / 2)   likewise
//   experts.E.*.scale         (rows, columns / 32)  F8_E8M0
//   experts.E.*.bias          (rows)  BF16 or F32; no DeepSeek release has them, synth writes them
//   shared_experts.{w1,w3}.weight  (I_s, H)  F8_E4M3
//   shared_experts.w2.weight       (H, I_s)  F8_E4M3
//   shared_experts.*.scale    F8_E8M0 or F32; dtype and shape decide the grid (see ScaleGrid)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// Which matrix is the gate. DeepSeek's own files: kW1GateW3Up. Nothing in a file tells the two
// apart, so the caller says it.
enum class GateUpOrder : std::uint8_t { kW1GateW3Up, kW1UpW3Gate };

// What the tensors and config.json say about one layer, cross-checked.
struct LayerInfo {
    std::string prefix;      // "layers.3.ffn."
    std::string model_type;  // "deepseek_v4"
    int hidden = 0;
    int inter = 0;
    int num_experts = 0;               // config's count, else the highest expert + 1
    std::vector<int> present_experts;  // with at least one tensor, ascending
    int topk = 0;                      // 0 if the config lacks it
    int shared_inter = 0;              // 0 without a shared expert
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;  // of a layer with a shared expert
    bool has_bias = false;
    std::optional<float> clamp;  // swiglu_limit; empty if the config lacks it
    float alpha = 1.0F;
    float beta = 0.0F;
    std::optional<float> routed_scaling_factor;
};

// Opens a layer. Tensors are checked when their expert is read: a missing or malformed expert is an
// error of WeightSource::expert alone, so checkpoints that hold some experts can be used.
// Ownership: *source holds the mapped shards; views outlive it through their keep_alive.
// Errors: kBadCheckpoint for a folder without config.json or tensors of the layer, experts that are
// not MXFP4, sizes that contradict the config; kBadInput for a negative layer. Reading an expert:
// kBadIndex outside [0, num_experts), kBadCheckpoint for a missing tensor, a wrong type or shape, a
// scale that is NaN, an E4M3 NaN, a bias that is not finite.
Status open_deepseek_layer(const std::string& folder, int layer, GateUpOrder order, LayerInfo* info,
                           std::unique_ptr<WeightSource>* source);

// The layer over num_ranks ranks. A config without swiglu_limit gives no clamp; the rest of Shape
// (activation scale, weight placement) keeps its defaults.
[[nodiscard]] Shape layer_shape(const LayerInfo& info, int num_ranks);

}  // namespace gcmoe::checkpoint
