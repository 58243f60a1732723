// A generated layer in the number format of any layout: what synth writes.
#pragma once

#include <memory>

#include "checkpoint/generated_layer.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/stored_source.hpp"

namespace gcmoe::checkpoint {

// kMxfp4: the bytes of open_generated_layer. kFp8: the same weights before quantising, routed and
// shared as E4M3 with scales of layer.shared_grid. kBf16: the same weights rounded to BF16, routed
// and shared.
// Errors: those of open_generated_layer; kBadConfig for another scale rule than "normal" with
// weights that have no K32 scales.
Status open_generated_stored(const GeneratedLayer& layer, RoutedFormat format,
                             std::unique_ptr<StoredSource>* out);

}  // namespace gcmoe::checkpoint
