// From a shape to the numbers that a person could tune: row block, ring, task size, lead,
// partition.
#pragma once

#include "backend/rank_backend.hpp"
#include "gcmoe/operator.hpp"
#include "gcmoe/shape.hpp"

namespace gcmoe::plan {

// Row blocks are whole wgmma N steps; 64 rows are the most that one pass over the weights serves.
inline constexpr int kMinRowBlock = 8;
inline constexpr int kMaxRowBlock = 64;

// A larger ring would not gain: more blocks than any launch of 72 ranks x 256 tokens needs.
inline constexpr int kMaxRingBlocks = 1 << 20;

// SMs of the largest GPU in sight, and threads of a rank that a machine can still start.
inline constexpr int kMaxUnits = 1024;

// Ring bytes to stay under when the ring is chosen: it should live in the L2 (60 MB on an H200)
// beside the weights that stream through.
inline constexpr std::uint64_t kRingBytes = 16ULL << 20;

// Fills what the options leave open and checks the whole. Signal offsets are filled by the layout
// later. Errors: kBadConfig naming plan, field, value and limit.
Status choose_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                   const Partition::Limits& limits, backend::Plan* plan);

}  // namespace gcmoe::plan
