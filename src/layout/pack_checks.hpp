// What every packer refuses before it packs: shapes, expert ids, views that do not fit.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::layout {

// The part of the shape that packing depends on; validate(shape) judges the rest.
// Errors: kBadConfig.
Status check_packable(const Shape& shape, int rank);

// Marks which experts of a rank to pack; no ids = all. Ids that belong to other ranks are none of
// ours. Shapes: wanted (experts_per_rank). Errors: kBadConfig for an id outside the layer.
Status choose_experts(const Shape& shape, int rank, const std::vector<int>& only_experts,
                      std::vector<bool>* wanted);

// Sizes and pointers of an expert's views; owner: "expert 17". Errors: kBadCheckpoint.
Status check_expert(const Shape& shape, const std::string& owner, const ExpertBytes& bytes);
Status check_shared_expert(const Shape& shape, const SharedExpertBytes& bytes);

}  // namespace gcmoe::layout
