// A small layer of every layout.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/open_layer.hpp"
#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/safetensors_writer.hpp"
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

// The tensors of a folder with one file, to be changed and written again.
struct Tensor {
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

inline Tensors read_tensors(const std::string& folder) {
    std::unique_ptr<SafetensorsFile> file;
    expect_ok(SafetensorsFile::open(folder + "/model.safetensors", &file));
    Tensors out;
    for (const TensorRecord& record : file->tensors()) {
        StoredTensor tensor;
        expect_ok(file->tensor(record.name, &tensor));
        out[record.name] = {tensor.dtype, tensor.shape, bytes_of_tensor(tensor)};
    }
    return out;
}

inline void write_tensors(const std::string& folder, const Tensors& tensors) {
    std::vector<TensorSpec> specs;
    for (const bool wide : {true, false}) {  // floats first: they must stand aligned
        for (const auto& [name, tensor] : tensors) {
            if ((dtype_bytes(tensor.dtype) > 1) == wide) {
                specs.push_back({name, tensor.dtype, tensor.shape});
            }
        }
    }
    std::unique_ptr<SafetensorsWriter> writer;
    expect_ok(SafetensorsWriter::create(folder + "/model.safetensors", specs, {}, &writer));
    ASSERT_NE(writer, nullptr);
    for (const TensorSpec& spec : specs) {
        const std::string& bytes = tensors.at(spec.name).bytes;
        expect_ok(writer->write(spec.name, bytes.data(), bytes.size()));
    }
    expect_ok(writer->finish());
}

}  // namespace gcmoe::checkpoint
