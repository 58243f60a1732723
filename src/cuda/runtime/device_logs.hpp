// The event logs of a rank's units in device memory.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/device/device_buffer.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "gcmoe/status.hpp"
#include "trace/trace.hpp"

namespace gcmoe::cuda::runtime {

// Most units of each role on a rank.
struct UnitCounts {
    std::size_t dispatch = 0;  // of role 1, and of role 4
    std::size_t compute = 0;
    std::size_t combine = 0;
};

class DeviceLogs {
  public:
    // Empty logs of the current device: `unit_events` for each unit; those of role 1 share them out
    // among their warps. Errors: kUnsupported (no memory).
    Status allocate(const UnitCounts& counts, std::size_t unit_events);
    // What the kernels write to; all null before allocate().
    [[nodiscard]] device::GpuLogs logs() const;
    // Adds a track for every log with events. Callers: the current device is that of allocate(),
    // and no launch is open. Errors: kInternal (CUDA's).
    Status append(int rank, trace::Trace* out) const;

  private:
    // Neighbouring logs, those of one role.
    struct Range {
        trace::UnitRoles roles;
        std::size_t num_logs = 0;
        std::size_t unit_logs = 1;  // of a unit: its warps'
        std::size_t capacity = 0;   // events of a log
    };
    std::vector<Range> ranges_;
    device::DeviceBuffer headers_;  // (logs) trace::UnitLog
    device::DeviceBuffer events_;
};

}  // namespace gcmoe::cuda::runtime
