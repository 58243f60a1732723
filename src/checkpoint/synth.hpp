// Writes a generated layer as a DeepSeek checkpoint folder, for tests, demonstrations and
// benchmarks without the real weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/generated_layer.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// What config.json looks like; the tensors are the same.
enum class CheckpointFormat : std::uint8_t {
    kDeepseekV4,   // model_type deepseek_v4, fields at the top
    kDeepseekV41,  // model_type deepseek_v41, fields in text_config
};

// Counts of what has been written so far and of all.
struct SynthProgress {
    int num_experts_done = 0;
    int num_experts = 0;
    std::uint64_t done_bytes = 0;
    std::uint64_t total_bytes = 0;
};

struct SynthOptions {
    std::string folder;  // made if missing; must hold no checkpoint
    GeneratedLayer layer;
    CheckpointFormat format = CheckpointFormat::kDeepseekV4;
    int layer_idx = 0;
    std::vector<int> experts;       // global ids to write, ascending; empty = all
    float routed_scale = 1.0F;      // goes to config.json
    std::uint64_t shard_bytes = 0;  // data bytes a shard may have; 0 = one model.safetensors
    std::function<void(const SynthProgress&)> progress;  // after each expert; may be empty
};

struct SynthReport {
    int num_experts = 0;
    int num_files = 0;            // safetensors files
    std::uint64_t num_bytes = 0;  // of tensors
};

// Writes shards, then the index, then config.json. w1 is the gate, w3 the up matrix
// (GateUpOrder::kW1GateW3Up). Tensor bytes equal those of the generator; biases are stored as BF16,
// which they are exactly. A layer's alpha and beta go to the fields swiglu_alpha and swiglu_beta.
// Peak memory: one expert. Same options, same bytes.
// Errors: kBadConfig of the layer; kBadInput for experts that are not ascending ids of the layer, a
// negative layer, a folder that holds a checkpoint already or cannot be written, a full disk. After
// an error none of the files is left.
Status synthesise_checkpoint(const SynthOptions& options, SynthReport* report);

}  // namespace gcmoe::checkpoint
