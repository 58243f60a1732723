// What a checkpoint's config.json says about its MoE layers.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// The fields by their names in the file; empty = the file lacks them or says null.
struct ModelConfig {
    std::string path;
    std::string model_type;    // "" if absent
    std::string expert_dtype;  // "" if absent
    std::optional<int> hidden_size;
    std::optional<int> moe_intermediate_size;
    std::optional<int> intermediate_size;  // of the experts only where all layers are MoE (gpt-oss)
    // Three names of one count: DeepSeek and GLM; gpt-oss; Qwen.
    std::optional<int> n_routed_experts;
    std::optional<int> num_local_experts;
    std::optional<int> num_experts;
    std::optional<int> num_experts_per_tok;
    std::optional<int> n_shared_experts;
    // Inter of all shared experts together, where it is not n_shared_experts *
    // moe_intermediate_size.
    std::optional<int> shared_expert_intermediate_size;
    std::optional<float> swiglu_limit;
    // Written by synth for layers whose activation no DeepSeek config can say.
    std::optional<float> swiglu_alpha;
    std::optional<float> swiglu_beta;
    std::optional<float> routed_scaling_factor;
    std::optional<std::array<int, 2>> weight_block_size;  // rows, columns
};

// Reads folder/config.json. Fields stand at the top or in `text_config` (which wins, except for
// model_type); weight_block_size also in `quantization_config`.
// Errors: kBadCheckpoint with path, field and value for a missing file, bad JSON, a field of the
// wrong kind or out of range.
Status read_model_config(const std::string& folder, ModelConfig* out);

}  // namespace gcmoe::checkpoint
