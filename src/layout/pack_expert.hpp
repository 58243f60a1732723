// One expert at a time, from a source to tiles: what PackedWeights::pack and the packed file share.
#pragma once

#include <memory>

#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "layout/packed_weights.hpp"
#include "layout/sm100_matrix.hpp"

namespace gcmoe::layout {

// Asks the source for one expert and packs it. Peak memory: its bytes and its tiles.
// Errors: those of the source, check_expert and pack_matrix.
Status pack_expert(WeightSource& source, const Shape& shape, int expert_idx, bool allow_inexact,
                   std::unique_ptr<PackedExpert>* out, PackReport* report);

// The shared expert. Errors: those of the source, check_shared_expert and pack_fp8_matrix.
struct PackedSharedExpert {
    PackedFp8Matrix first;   // (2 * shared_inter, hidden), natural order
    PackedFp8Matrix second;  // (hidden, shared_inter), natural order
};
Status pack_shared_expert(WeightSource& source, const Shape& shape, PackedSharedExpert* out,
                          PackReport* report);

// The same in sm100 tiles, routed or shared.
struct Sm100Expert {
    Sm100Matrix first;
    Sm100Matrix second;
};
Status pack_expert_sm100(WeightSource& source, const Shape& shape, int expert_idx, Sm100Expert* out,
                         PackReport* report);
Status pack_shared_expert_sm100(WeightSource& source, const Shape& shape, bool allow_inexact,
                                Sm100Expert* out, PackReport* report);

}  // namespace gcmoe::layout
