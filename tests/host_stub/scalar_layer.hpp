// The layer in scalar code, from inputs and packed weights alone, with role 2's order of sums: the
// bytes that the roles' bodies must leave behind.
//
// For every chunk of 128 of K, in order: the products' sum, exact in the tests' layers, goes onto
// the accumulator by one fma, times the activation scale (weights with row factors, FP32 scales) or
// as (sum * activation scale) times the chunk's factor. With a scale per K32, of activations or of
// FP8 weights, each K32 is such a step. Bias, SwiGLU, weight and requantisation round one by one.
#pragma once

#include <memory>
#include <vector>

#include "gcmoe/weights.hpp"
#include "reference/layer.hpp"

namespace gcmoe::host_stub {

// All ranks; `weights` by rank. Bytes that no launch writes are 0xFF, as poisoned memory is.
// RankStages::plain stays empty.
std::vector<reference::RankStages> scalar_layer(
    const Shape& shape, const std::vector<std::shared_ptr<const PackedWeights>>& weights,
    const std::vector<reference::RankInputs>& inputs);

}  // namespace gcmoe::host_stub
