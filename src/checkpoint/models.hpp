// The models whose layers the project knows by name.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// One MoE layer of a model.
struct ModelEntry {
    std::string name;
    int hidden = 0;
    int inter = 0;
    int num_experts = 0;
    int topk = 0;
    int shared_inter = 0;  // of all shared experts together; 0 = none
    Activation activation;
    bool has_bias = false;
    float routed_scale = 1.0F;  // routed_scaling_factor; the caller folds it into the weights
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;  // as the release stores its FP8 weights
};

// All entries, in the order in which they are listed to people.
[[nodiscard]] const std::vector<ModelEntry>& known_models();

// Errors: kBadConfig with the name and the known ones.
Status find_model(const std::string& name, ModelEntry* out);

// The entry's shape over num_ranks ranks; the rest of Shape keeps its defaults.
[[nodiscard]] Shape model_shape(const ModelEntry& entry, int num_ranks);

// A smaller layer of the same kind: hidden, inter and shared_inter divided and rounded to the
// nearest multiple of 128 (ties up), at least 128 (shared_inter 0 stays 0); experts divided and
// rounded to the nearest multiple of 8 (ties up), at least max(topk, 8) rounded up to a multiple
// of 8. Callers: divisor >= 1; 1 rounds only.
[[nodiscard]] ModelEntry reduced(const ModelEntry& entry, int divisor);

}  // namespace gcmoe::checkpoint
