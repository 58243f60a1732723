// A layer made by a formula: a source of weights that needs no file.
#pragma once

#include <memory>
#include <string>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// Weights depend on (hidden, inter, scale rule, expert, matrix) only, those of the shared expert on
// (hidden, shared_inter, shared_grid, matrix): neither on the number of experts or ranks nor on
// each other. hidden, inter and shared_inter are multiples of 32 (what lies beyond a multiple of
// 128 is the padded source's work).
struct GeneratedLayer {
    Shape shape;
    std::string weight_scales = "normal";  // see parse_scale_rule
    bool biases = false;                   // must agree with shape.has_bias
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;
};

// Every call of the source generates anew; the views own their bytes through keep_alive.
// Errors: kBadConfig for sizes or a scale rule that cannot be; of the source: kBadIndex for an
// expert outside [0, num_experts), kBadConfig for the shared expert of a layer without one.
Status open_generated_layer(const GeneratedLayer& layer, std::unique_ptr<WeightSource>* out);

}  // namespace gcmoe::checkpoint
