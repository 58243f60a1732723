// What a role's unit on the CPU gets for one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"
#include "layout/packed_weights.hpp"
#include "layout/rank_memory.hpp"
#include "trace/event.hpp"

namespace gcmoe::cpu {

// When a unit worked, in nanoseconds of the memory policy's clock. Zero = did not happen.
struct UnitTimes {
    std::uint64_t begin_ns = 0;
    std::uint64_t first_work_ns =
        0;  // role 1: first row; role 2: first routed task whose block was full
    std::uint64_t last_work_ns = 0;  // role 1: last row committed
    std::uint64_t end_ns = 0;
};

// Floats at a multiple of 64 bytes, as full vectors are loaded. resize() does not keep what was
// there if it has to grow.
class AlignedFloats {
  public:
    void resize(std::size_t size) {
        if (size + kSpare > storage_.size()) storage_.resize(size + kSpare);
    }
    [[nodiscard]] float* data() {
        const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
        return storage_.data() + (kAlign - address % kAlign) % kAlign / sizeof(float);
    }

  private:
    static constexpr std::size_t kAlign = 64;
    static constexpr std::size_t kSpare = kAlign / sizeof(float);
    std::vector<float> storage_;
};

// Arrays that a unit uses again for every task, so that launches do not allocate.
struct Scratch {
    AlignedFloats values;          // (chunks of K, rows, 8, 16) decoded codes of the task's rows
    AlignedFloats scales;          // (chunks of K, rows, 4)
    AlignedFloats sums;            // (rows, packed rows of the task)
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
    UnitTimes* dispatch_times = nullptr;      // (dispatch_units)
    UnitTimes* compute_times = nullptr;       // (compute_units)
    UnitTimes* combine_times = nullptr;       // (compute_units)
    Scratch* dispatch_scratch = nullptr;      // (dispatch_units)
    Scratch* compute_scratch = nullptr;       // (compute_units)
    trace::UnitLog* dispatch_logs = nullptr;  // (dispatch_units); null = no trace
    trace::UnitLog* compute_logs = nullptr;   // (compute_units), of roles 2 and 3
};

}  // namespace gcmoe::cpu
