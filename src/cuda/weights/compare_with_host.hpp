// Holds the device's generator and packer to the host's, byte for byte, on a few experts: part of
// every check run on a GPU.
#pragma once

#include <vector>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/padded_source.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::cuda::weights {

// The checkpoint bytes and the tiles that the host makes of these experts (and of the shared
// expert) against those on the device. on_device: of generate_layer; packed: what pack_on_device or
// upload made of it, with these experts on its rank. Takes about 40 ns of a host core per weight.
// Errors: kInternal naming expert, array, byte and values; those of the host's packer.
Status compare_with_host(const checkpoint::GeneratedLayer& layer,
                         const checkpoint::PaddedSizes& sizes, WeightSource& on_device,
                         const PackedWeights& packed, const std::vector<int>& expert_ids);

}  // namespace gcmoe::cuda::weights
