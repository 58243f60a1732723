// What config.json says about a layer against what its tensors say.
#pragma once

#include "checkpoint/layer_info.hpp"
#include "checkpoint/model_config.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// Fills the fields of info that only the config tells: model_type, num_experts, topk, activation,
// routed_scaling_factor. gpt-oss fixes its activation in code; its clamp of 7, alpha of 1.702 and
// beta of 1 stand where the config is silent.
// Errors: kBadCheckpoint with path, field and both values.
Status apply_config(const ModelConfig& config, LayerInfo* info);

}  // namespace gcmoe::checkpoint
