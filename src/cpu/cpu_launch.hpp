// What a role's unit on the CPU gets for one launch.
#pragma once

#include <cstdint>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"
#include "layout/packed_weights.hpp"
#include "layout/rank_memory.hpp"

namespace gcmoe::cpu {

// When a unit worked, in nanoseconds of the memory policy's clock. Zero = did not happen.
struct UnitTimes {
    std::uint64_t begin_ns = 0;
    std::uint64_t first_work_ns =
        0;  // role 1: first row; role 2: first routed task whose block was full
    std::uint64_t last_work_ns = 0;  // role 1: last row committed
    std::uint64_t end_ns = 0;
};

// Arrays that a unit uses again for every task, so that launches do not allocate.
struct Scratch {
    std::vector<float> values;     // (rows, K) decoded codes of the task's rows
    std::vector<float> scales;     // (rows, scale groups of K)
    std::vector<float> sums;       // (packed rows of the task, rows)
    std::vector<float> activated;  // (rows, 128) SwiGLU outputs of a first-GEMM task
    std::vector<layout::Origin> origins;
    std::vector<std::uint32_t> counts;
};

struct CpuLaunch {
    layout::RankMemory memory;
    const Shape* shape = nullptr;
    const PackedStorage* weights = nullptr;
    std::uint32_t lead_blocks = 1;
    bool overlap = true;
    std::uint64_t wait_limit_ns = 0;
    std::uint16_t* y = nullptr;
    std::int64_t y_stride = 0;
    UnitTimes* dispatch_times = nullptr;  // (dispatch_units)
    UnitTimes* compute_times = nullptr;   // (compute_units)
    UnitTimes* combine_times = nullptr;   // (compute_units)
    Scratch* dispatch_scratch = nullptr;  // (dispatch_units)
    Scratch* compute_scratch = nullptr;   // (compute_units)
};

}  // namespace gcmoe::cpu
