// What a role's kernel gets for one launch: by value, so that a captured graph needs no other
// memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gcmoe/shape.hpp"
#include "layout/rank_memory.hpp"
#include "layout/weight_tile.hpp"
#include "trace/event.hpp"

namespace gcmoe::cuda::device {

// One expert matrix on the device. Exactly one of the factor arrays is set.
struct GpuMatrix {
    const std::uint8_t* tiles = nullptr;   // (rows / 64, chunks, kFp4TileBytes); null = not packed
    const float* row_factors = nullptr;    // (rows)
    const float* chunk_factors = nullptr;  // (rows / 64, chunks, 64)
    const float* bias = nullptr;           // (rows) in packed order, or null
};

struct GpuExpert {
    GpuMatrix first;   // (2 * inter, hidden)
    GpuMatrix second;  // (hidden, inter)
};

// The shared expert's matrix.
struct GpuFp8Matrix {
    const std::uint8_t* tiles = nullptr;  // (rows / 64, chunks, kFp8TileBytes)
    const float* scales = nullptr;        // (rows / 64, chunks, 64, groups)
    std::uint32_t groups = 1;             // scales per K128
};

// Nanoseconds of the device's global timer; zero = did not happen.
struct GpuTimes {
    std::uint64_t begin_ns;
    std::uint64_t first_work_ns;
    std::uint64_t last_work_ns;
    std::uint64_t end_ns;
    std::uint32_t sm_id;
    std::uint32_t failed;  // the unit left early
};

// Where the units record events; all null without a trace.
inline constexpr std::uint32_t kDispatchLogs = 16;  // of a unit of role 1: one for each warp
struct GpuLogs {
    trace::UnitLog* dispatch = nullptr;  // (dispatch_units, kDispatchLogs)
    trace::UnitLog* compute = nullptr;   // (compute_units)
    trace::UnitLog* combine = nullptr;   // (combine units)
    trace::UnitLog* shared = nullptr;    // (dispatch_units) role 4
};

// What of role 1 a launch does: all of it, or (serial mode) one step after the other.
enum class DispatchStep : std::uint32_t { kWhole, kPublish, kPull };

// Bytes that a launch's first microseconds will read: role 1 asks the L2 for them.
struct WarmRange {
    const void* from = nullptr;
    std::uint32_t bytes = 0;
};
inline constexpr std::uint32_t kWarmRanges = 13;

struct GpuLaunch {
    layout::RankMemory memory;
    const GpuExpert* experts = nullptr;  // (experts_per_rank)
    GpuFp8Matrix shared_first;
    GpuFp8Matrix shared_second;
    Activation activation;
    std::uint32_t num_experts = 0;
    std::uint32_t hidden = 0;
    std::uint32_t lead_blocks = 1;
    std::uint32_t overlap = 1;
    std::uint32_t has_role4 = 0;   // the shared expert's tasks are a list of their own
    std::uint32_t is_role4 = 0;    // this kernel takes from that list only
    std::uint32_t is_warm_up = 0;  // 1: the kernel returns at once (see prepare_kernel)
    std::uint32_t is_traced = 0;   // 1: has logs, and its kernels are those that record
    layout::KOrder order = layout::KOrder::kQuadBlock;
    WeightPlacement weight_placement = WeightPlacement::kBeforeRequantise;
    std::uint64_t first_limit_ns = 0;  // of every wait, first launch of a session; 0 = for ever
    std::uint64_t wait_limit_ns = 0;   // later ones
    DispatchStep dispatch_step = DispatchStep::kWhole;
    std::uint16_t* y = nullptr;
    std::int64_t y_stride = 0;
    GpuTimes* dispatch_times = nullptr;  // (dispatch_units)
    GpuTimes* compute_times = nullptr;   // (compute_units)
    GpuTimes* combine_times = nullptr;   // (compute_units)
    GpuTimes* shared_times = nullptr;    // (dispatch_units) role 4
    WarmRange warm_ranges[kWarmRanges];
    GpuLogs logs;
};

// What a kernel that records gets. Roles are templates of the launch's type: the kernels of plain
// launches hold no instruction of the trace.
struct TracedLaunch : GpuLaunch {};
template <bool kTraced>
using LaunchOf = std::conditional_t<kTraced, TracedLaunch, GpuLaunch>;
template <class Gpu>
inline constexpr bool kKeepsLogs = std::is_same_v<Gpu, TracedLaunch>;

// The limit of this launch's waits; decided on the device, so that a captured launch can be both.
GCMOE_HD inline std::uint64_t wait_limit(const GpuLaunch& gpu) {
    const layout::StateWords& state = *gpu.memory.state();
    return state.generation == state.start_generation ? gpu.first_limit_ns : gpu.wait_limit_ns;
}
static_assert(std::is_trivially_copyable_v<TracedLaunch>);
static_assert(sizeof(TracedLaunch) <= 4096, "a kernel's parameters");

}  // namespace gcmoe::cuda::device
