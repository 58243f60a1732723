// Checkpoint bytes of a generated layer, made on the device: the bytes that
// checkpoint::open_generated_layer and pad_source make on the host.
#pragma once

#include <memory>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/padded_source.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::cuda::weights {

// Global ids first..first + count - 1.
struct ExpertRange {
    int first = 0;
    int count = 0;
};

// The layer's own sizes: no padding. Callers: sizes that are multiples of 128.
[[nodiscard]] inline checkpoint::PaddedSizes sizes_of(const Shape& shape) {
    return {shape.hidden, shape.inter, shape.shared_inter};
}

// Makes a device the current one of the calling thread. Errors: kInternal.
Status use_device(int device);

// Generates the experts of `range` and the shared expert, if the layer has one, in the memory of
// the current device. The views that the source hands out are device pointers (pieces of one
// buffer, aligned to 16 bytes), ready when the call returns; the buffer lives as long as the source
// or a keep_alive.
// Errors: those of checkpoint::open_generated_layer; kBadConfig for padded sizes smaller than the
// layer's or a range outside it; kUnsupported (device memory), kInternal. Of the source: kBadIndex
// for an expert outside the range.
Status generate_layer(const checkpoint::GeneratedLayer& layer, const checkpoint::PaddedSizes& sizes,
                      const ExpertRange& range, std::shared_ptr<WeightSource>* out);

}  // namespace gcmoe::cuda::weights
