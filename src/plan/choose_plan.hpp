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
    int sms = 0;             // of the GPU that the rank has for itself; 0 = no such one
    int units_of_share = 0;  // SMs of the rank, all of which a plan hands out; 0 = no such rule
    int second_columns = 0;  // the only task width of the kernels; 0 = any
    bool has_role4 = false;  // the backend has one
    bool has_sms = false;    // units are SMs, which a plan may choose
    // Role 3 may follow role 2 unit by unit (kFollow), or share a kernel with both roles (kAll).
    bool has_follow = false;
    // Tokens per unit of role 1 up to which role 3 runs on role 1's units; 0 = never by itself.
    int combine_tokens_per_unit = 0;
    int lead_tasks_per_unit = 0;  // tasks that the first GEMMs run ahead by; 0 = two blocks
    int default_dispatch = 0;     // 0 = the floors
    int default_compute = 0;
};
constexpr Machine cpu_machine() { return {Partition::cpu_limits(), 512ULL << 10}; }

// Columns of a second-GEMM task of the GPU: four row tiles of 64, one per math warpgroup.
inline constexpr int kGpuTaskColumns = 256;

// SMs of the GPU that the defaults were measured on.
inline constexpr int kH200Sms = 132;

// Rows of that many tokens are summed by one SM in about the time that a kernel more costs.
inline constexpr int kCombineTokensPerSm = 2;

// A GPU whose SMs `ranks` virtual ranks share, in pairs: every rank gets as many whole pairs.
// Virtual ranks lower the floor of compute SMs (their timings are no measure of a rank's).
constexpr Machine gpu_machine(int sms, int ranks) {
    Machine machine;
    const int pairs = sms / 2 / ranks;
    if (ranks == 1) machine.sms = sms;
    machine.units_of_share = 2 * pairs;
    if (ranks > 1) machine.limits.min_compute = 2;
    machine.second_columns = kGpuTaskColumns;
    // A second GEMM's ticket is taken long after those of its first GEMM, so that it need not wait:
    // V4.1-Flash, 32 tokens, 116 SMs (38 tasks a block): 512 us with a lead of 2 blocks, 430 with
    // 4, 394 with 8, 391 with 12 (one H200, 2026-12-01).
    machine.lead_tasks_per_unit = 4;
    machine.has_role4 = true;
    machine.has_sms = true;
    machine.has_follow = true;
    machine.combine_tokens_per_unit = kCombineTokensPerSm;
    // A rank alone pulls from its own memory, for which 8 SMs are enough (V4.1-Flash at 1, 32, 128,
    // 256 tokens: 70, 269, 298, 368 us with 8, 79, 280, 310, 385 with 16). Of a share, an eighth.
    machine.default_dispatch = ranks == 1 ? 8 : 2 * ((pairs + 7) / 8);
    machine.default_compute = machine.units_of_share - machine.default_dispatch;
    return machine;
}

// Fills what the options leave open and checks the whole. Signal offsets are filled by the layout
// later. Errors: kBadConfig naming plan, field, value and limit.
Status choose_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                   const Machine& machine, backend::Plan* plan);

}  // namespace gcmoe::plan
