// Writes a generated layer as a checkpoint folder of any layout, for tests, demonstrations and
// benchmarks without the real weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/layer_info.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// Layout of the tensors, and what config.json looks like.
enum class CheckpointFormat : std::uint8_t {
    kDeepseekV4,    // layout deepseek, model_type deepseek_v4, fields at the top
    kDeepseekV41,   // the same tensors; model_type deepseek_v41, fields in text_config
    kBlockFp8,      // layout huggingface, all in FP8; model_type deepseek_v3
    kBf16,          // layout huggingface, all in BF16; model_type deepseek_v3
    kGptOss,        // layout gpt-oss; model_type gpt_oss
    kW13GateFirst,  // layout w13; model_type deepseek_v4
    kW13UpFirst,
};
[[nodiscard]] TensorLayout layout_of(CheckpointFormat format);
[[nodiscard]] RoutedFormat routed_format_of(CheckpointFormat format);

// Counts of what has been written so far and of all.
struct SynthProgress {
    int num_experts_done = 0;
    int num_experts = 0;
    std::uint64_t done_bytes = 0;
    std::uint64_t total_bytes = 0;
};

struct SynthOptions {
    std::string folder;  // made if missing; must hold no checkpoint, or one to replace
    // Lets a checkpoint that this function wrote be replaced: it goes when the new one is whole.
    bool may_replace = false;
    GeneratedLayer layer;
    CheckpointFormat format = CheckpointFormat::kDeepseekV4;
    int layer_idx = 0;
    std::vector<int> experts;       // global ids to write, ascending; empty = all
    float routed_scale = 1.0F;      // goes to config.json
    std::uint64_t shard_bytes = 0;  // data bytes a shard may have; 0 = one model.safetensors
    std::function<void(const SynthProgress&)> progress;  // after each expert; may be empty
    // Asked before every part of an expert; an error ends the work. May be empty.
    std::function<Status()> proceed;
};

struct SynthReport {
    int num_experts = 0;
    int num_files = 0;            // safetensors files
    std::uint64_t num_bytes = 0;  // of tensors
};

// Writes shards, then the index, then config.json. w1 is the gate, w3 the up matrix
// (GateUpOrder::kW1GateW3Up). Tensor bytes equal those of the generator (generated_stored.hpp);
// biases are stored as BF16, which they are exactly. An alpha and beta that the layout does not
// imply go to the fields swiglu_alpha and swiglu_beta. The shared expert of a w13 layer has the
// names of layout huggingface. Stacked tensors are generated once for each of them.
// Peak memory: one expert. Same options, same bytes.
// Errors: kBadConfig of the layer; kBadInput for experts that are not ascending ids of the layer
// or, in stacked layouts, not all of them, a shared expert in gpt-oss, a negative layer, a folder
// that holds a checkpoint already or cannot be written, a full disk; those of proceed. After an
// error none of the files is left, and a checkpoint that was to be replaced is what it was.
Status synthesise_checkpoint(const SynthOptions& options, SynthReport* report);

}  // namespace gcmoe::checkpoint
