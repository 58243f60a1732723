// The fingerprint of a layer: a 64-bit hash that tells the weights of one layer from those of
// another, whatever rank asks and whichever experts it wants.
#pragma once

#include <string>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/open_layer.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// Bytes of each end of a tensor that count.
inline constexpr std::uint64_t kFingerprintBytes = 64;

// Of every tensor of the layer's experts, routed and shared, in the order of their names: name,
// dtype, shape, first and last kFingerprintBytes; and which matrix is the gate. Neither shards nor
// the folder's path count, nor what lies inside a tensor: other weights differ at the ends, too.
// Errors: kBadCheckpoint for a tensor of the layer that cannot be opened, whoever owns its expert.
Status identify_checkpoint_layer(const std::string& folder, const ReadOptions& options,
                                 const LayerInfo& info, LayerIdentity* out);

// Of what the generator's weights depend on. A folder that synth wrote of it has tensors, and so
// another fingerprint. model: for people.
[[nodiscard]] LayerIdentity identify_generated_layer(const GeneratedLayer& layer,
                                                     const std::string& model);

}  // namespace gcmoe::checkpoint
