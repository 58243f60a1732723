// Packs checkpoint bytes that lie on the device into tiles on the device: the bytes, forms and
// errors of PackedWeights::pack.
#pragma once

#include <memory>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::cuda::weights {

// As PackedWeights::pack, for a source whose views are device pointers aligned to 16 bytes
// (generate_layer). The result's storage holds a GpuWeights in `device` and nothing on the host.
// FP8 codes and scales are taken as they are: a generator makes no NaN.
// Errors: those of PackedWeights::pack; kUnsupported where options.allow_inexact would have to
// round (the host's packer does that), for device memory; kInternal.
Status pack_on_device(WeightSource& source, const Shape& shape, int rank,
                      const PackOptions& options, std::shared_ptr<const PackedWeights>* out,
                      PackReport* report);

}  // namespace gcmoe::cuda::weights
