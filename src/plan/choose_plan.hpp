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

// What a plan depends on beside the shape.
struct Machine {
    Partition::Limits limits;
    // Ring bytes to stay under when the ring is chosen, so that rows stay in the cache that the
    // units share. GPU: 16 MiB of the L2 (60 MB on an H200), beside the weights that stream
    // through. CPU: half of a core's L2 (1 MiB).
    std::uint64_t ring_bytes = 16ULL << 20;
};
constexpr Machine cpu_machine() { return {Partition::cpu_limits(), 512ULL << 10}; }

// Fills what the options leave open and checks the whole. Signal offsets are filled by the layout
// later. Errors: kBadConfig naming plan, field, value and limit.
Status choose_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                   const Machine& machine, backend::Plan* plan);

}  // namespace gcmoe::plan
