// Which tensors of a synthetic checkpoint go to which file, in writing order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.hpp"
#include "checkpoint/synth.hpp"

namespace gcmoe::checkpoint {

enum class TensorPart : std::uint8_t { kWeight, kScale, kBias };

inline constexpr int kSharedExpertIdx = -1;
inline constexpr int kAllExperts = -2;  // a stack of them

// Which matrix of an expert a tensor holds.
enum class SynthMatrix : std::uint8_t { kGate, kUp, kDown, kGateAndUp };

// One tensor and what it is made of.
struct SynthTensor {
    TensorSpec spec;
    int expert_idx = kSharedExpertIdx;
    SynthMatrix matrix = SynthMatrix::kGate;
    TensorPart part = TensorPart::kWeight;
    std::uint64_t num_bytes = 0;
};

struct SynthShard {
    std::string file_name;
    std::vector<SynthTensor> tensors;
};

struct SynthPlan {
    std::vector<int> experts;  // ids to write, ascending
    std::vector<SynthShard> shards;
    std::uint64_t total_bytes = 0;
};

// The shared expert first, then the experts in order; a shard is closed when the next tensor would
// make it larger than shard_bytes, so an expert may lie in two shards.
// Errors: kBadInput, see synthesise_checkpoint.
Status make_synth_plan(const SynthOptions& options, SynthPlan* out);

// The text of config.json and of the index.
[[nodiscard]] std::string synth_config_text(const SynthOptions& options);
[[nodiscard]] std::string synth_index_text(const SynthPlan& plan);

}  // namespace gcmoe::checkpoint
