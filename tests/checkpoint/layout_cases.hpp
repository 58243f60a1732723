// A small layer of every layout.
#pragma once

#include "checkpoint/open_layer.hpp"
#include "checkpoint/synth.hpp"
#include "test_files.hpp"

namespace gcmoe::checkpoint {

inline SynthOptions options_of(const std::string& folder, CheckpointFormat format) {
    SynthOptions options;
    options.folder = folder;
    options.format = format;
    options.layer_idx = 4;
    options.layer.shape.hidden = 192;  // no multiples of 128: 128x128 blocks at the edge are cut
    options.layer.shape.inter = 160;
    options.layer.shape.num_experts = 3;
    options.layer.shape.topk = 2;
    if (format == CheckpointFormat::kBlockFp8) {
        options.layer.shared_grid = ScaleGrid::kFp32Block128;
    }
    if (format == CheckpointFormat::kGptOss) {
        options.layer.shape.activation = kGptOssActivation;
        options.layer.shape.has_bias = true;
        options.layer.biases = true;
    } else {
        options.layer.shape.shared_inter = 320;
        options.layer.shape.activation.clamp = 10.0F;
    }
    return options;
}

inline ReadOptions read_options_of(const SynthOptions& options) {
    ReadOptions read;
    read.layer = options.layer_idx;
    read.quantise = routed_format_of(options.format) != RoutedFormat::kMxfp4;
    if (options.format == CheckpointFormat::kW13GateFirst) read.order = GateUpOrder::kW1GateW3Up;
    if (options.format == CheckpointFormat::kW13UpFirst) read.order = GateUpOrder::kW1UpW3Gate;
    return read;
}

inline void write(const SynthOptions& options) {
    SynthReport report;
    expect_ok(synthesise_checkpoint(options, &report));
}

}  // namespace gcmoe::checkpoint
