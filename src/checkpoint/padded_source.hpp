// A source whose matrices are widened with zeros: 2880-wide models in a kernel that wants multiples
// of 128.
#pragma once

#include <cstdint>
#include <memory>

#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// Scales of groups and blocks that are all padding.
inline constexpr std::uint8_t kPadScaleCode = 127;  // 2^0
inline constexpr float kPadScale = 1.0F;

// The sizes after padding, each a multiple of 128; shared_inter 0 for a layer without shared
// expert.
struct PaddedSizes {
    int hidden = 0;
    int inter = 0;
    int shared_inter = 0;
};

// Appends rows and columns of zero weights, UE8M0 scales of 127 (FP32: 1) for the groups and blocks
// that are all padding, biases of 0. The padded layer gives the same output as the original on the
// original columns, zeros on the rest. Matrices that have the sizes already are handed through.
// Errors: kBadConfig for a size that is not a multiple of 128; of the source: kBadConfig for a
// matrix wider than the padded size, and those of the source below.
Status pad_source(std::unique_ptr<WeightSource> source, const PaddedSizes& sizes,
                  std::unique_ptr<WeightSource>* out);

}  // namespace gcmoe::checkpoint
