// A layer of a checkpoint folder as a source of expert weights. Which layout it is, the names of
// its tensors tell; docs/checkpoints.md lists them all.
//
// Prefix P of layer L: "layers.L.ffn." or "layers.L.mlp.", also behind "model.",
// "language_model.model." and "model.language_model.". H = hidden, I = inter.
//
//   deepseek     P experts.E.{w1,w3,w2}.weight       (I, H / 2), w2 (H, I / 2)  I8 or U8: MXFP4,
//                                                    two E2M1, even column in the low nibble;
//                                                    or (I, H), (H, I) in F8_E4M3 or BF16
//                P experts.E.*.scale                 MXFP4: (rows, columns / 32) F8_E8M0; FP8: any
//                                                    grid of ScaleGrid
//                P experts.E.*.bias                  (rows) BF16 or F32; synth alone writes them
//   huggingface  the same with {gate,up,down}_proj and weight_scale_inv
//   gpt-oss      P experts.gate_up_proj_blocks       (E, 2 I, H / 32, 16) U8, even rows gate
//                P experts.gate_up_proj_scales       (E, 2 I, H / 32) U8
//                P experts.gate_up_proj_bias         (E, 2 I) BF16
//                P experts.down_proj_*               (E, H, I / 32, 16), (E, H, I / 32), (E, H)
//   w13          P experts.{w13,w2}_weight           (E, 2 I, H / 2), (E, H, I / 2) U8
//                P experts.{w13,w2}_weight_scale     (E, 2 I, H / 32), (E, H, I / 32) U8 or F8_E8M0
//   shared       P shared_experts.{w1,w3,w2}.{weight,scale} or
//                P shared_experts.{gate,up,down}_proj.{weight,weight_scale_inv}: F8_E4M3 with any
//                grid of ScaleGrid, or BF16
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/layer_info.hpp"
#include "checkpoint/quantised_source.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

struct ReadOptions {
    int layer = 0;
    // Needed by w13, allowed for deepseek (default kW1GateW3Up), refused where the names tell.
    std::optional<GateUpOrder> order;
    // Lets weights that are wider than the operator's formats be quantised.
    bool quantise = false;
};

struct OpenedLayer {
    LayerInfo info;
    std::unique_ptr<WeightSource> source;
    // Null if nothing is quantised. Filled as experts are read.
    std::shared_ptr<const QuantiseReport> quantised;
};

// Opens a layer. Tensors are checked when their expert is read: a missing or malformed expert is an
// error of WeightSource::expert alone, so checkpoints that hold some experts can be used.
// Ownership: the source holds the open shards; views own their bytes through keep_alive.
// Errors: kBadCheckpoint for a folder without config.json or tensors of the layer, more than one
// layout or prefix, experts that need quantising without leave, sizes that contradict the config;
// kBadInput for a negative layer, an order that is missing or not wanted. Reading an expert:
// kBadIndex outside [0, num_experts), kBadCheckpoint for a missing tensor, a wrong type or shape, a
// number that is not finite.
Status open_checkpoint_layer(const std::string& folder, const ReadOptions& options,
                             OpenedLayer* out);

}  // namespace gcmoe::checkpoint
