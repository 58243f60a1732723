// One rank's inputs of a bench: uniform routing from a seed.
#pragma once

#include "checkpoint/models.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::cli {

// The inputs that `gcmoe run --ranks 1 --experts E --seed S` makes for the same layer; masked:
// every slot unused.
Status make_bench_inputs(const checkpoint::ModelEntry& model, const Shape& shape, int tokens,
                         int seed, bool masked, reference::RankInputs* out);

// Experts that a live slot names.
[[nodiscard]] int count_touched(const Shape& shape, const reference::RankInputs& inputs);

}  // namespace gcmoe::cli
