// A unit's record of its launch: when it began and ended, on which SM, and whether it came to its
// end.
#pragma once

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::device {

// Thread 0 of a CTA, before the role.
__device__ __forceinline__ void note_begin(GpuTimes* times) {
    if (ptx::thread_idx() != 0) return;
    *times = GpuTimes{};
    times->begin_ns = ptx::global_timer_ns();
    times->sm_id = ptx::sm_id();
}

// Thread 0 of a CTA, after the role.
__device__ __forceinline__ void note_end(GpuTimes* times, bool finished) {
    if (ptx::thread_idx() != 0) return;
    times->end_ns = ptx::global_timer_ns();
    times->failed = finished ? 0 : 1;
}

}  // namespace gcmoe::cuda::device
