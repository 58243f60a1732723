// The options that say which layer: shared by run, info and synth.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/layer_info.hpp"
#include "checkpoint/models.hpp"
#include "checkpoint/quantised_source.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

// As parsed; empty optionals were not given.
struct LayerOptions {
    std::string checkpoint;
    std::optional<int> layer;
    std::optional<std::string> gate_up;
    std::optional<std::string> quantize;

    std::string model;
    std::optional<int> reduced;
    std::optional<int> hidden;
    std::optional<int> inter;
    std::optional<int> experts;
    std::string experts_option = "--experts";  // its name in this command
    std::optional<int> topk;
    std::optional<int> shared_inter;
    std::optional<std::string> weight_scales;
    std::optional<std::string> shared_grid;
    std::optional<bool> shared;  // --shared / --no-shared

    std::optional<std::string> clamp;  // a number, or off
    std::optional<float> alpha;
    std::optional<float> beta;
    std::optional<std::string> activation_scale;
};

// --model and what changes its sizes. experts_option: the count of experts, "--experts" where that
// is free.
void add_model_options(CLI::App& command, LayerOptions* options, const std::string& experts_option);
// --checkpoint, --layer, --gate-up, --quantize.
void add_checkpoint_options(CLI::App& command, LayerOptions* options);
// --clamp, --alpha, --beta, --activation-scale.
void add_activation_options(CLI::App& command, LayerOptions* options);

// A model with the options' changes: sizes as the model has them, not padded.
struct GeneratedModel {
    checkpoint::ModelEntry entry;
    std::string weight_scales = "normal";
    std::string title;  // "v4.1-flash / 8"
};

// Errors: kBadInput naming option and value. default_shared: without --shared and --no-shared.
Status resolve_model(const LayerOptions& options, bool default_shared, GeneratedModel* out);

// Widths rounded up to 128: what the operator works with.
[[nodiscard]] Shape padded_shape(const checkpoint::ModelEntry& entry, int num_ranks);

// clamp, alpha, beta and activation scale into a shape.
Status apply_activation(const LayerOptions& options, Shape* shape);

// A refusal of the library with the option that its field belongs to in front.
[[nodiscard]] Status name_option(const Status& status);

// The first option that says which layer and was given, or empty.
[[nodiscard]] std::string given_layer_option(const LayerOptions& options);

// A layer that can be read.
struct Layer {
    std::string title;  // for people
    Shape shape;        // padded
    int hidden = 0;     // of the model; shape.hidden is this rounded up to 128
    int inter = 0;
    float routed_scale = 1.0F;
    std::string weight_scales = "normal";
    std::string layout;         // of a checkpoint: "deepseek"; empty: generated
    std::string stored_format;  // of its routed experts: "MXFP4"
    // What quantising did so far; null: nothing is quantised.
    std::shared_ptr<const checkpoint::QuantiseReport> quantised;
    std::vector<int> present_experts;      // ascending; empty = all
    std::unique_ptr<WeightSource> source;  // of the padded shape
    // Which layer of which source it is; reads a little of every tensor of a checkpoint's layer.
    std::function<Status(checkpoint::LayerIdentity*)> identify;
};

// Opens the checkpoint or the generator. Errors: kBadInput naming option and value.
Status open_layer(const LayerOptions& options, int num_ranks, Layer* out);

}  // namespace gcmoe::cli
