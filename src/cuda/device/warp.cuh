// Sums over the lanes of a warp.
#pragma once

#include <cstdint>

#include "cuda/ptx/special.cuh"
#include "cuda/ptx/sync.cuh"

namespace gcmoe::cuda::device {

// Sum over this lane and those before it.
__device__ __forceinline__ std::uint32_t warp_sum_upto(std::uint32_t value) {
    const std::uint32_t lane = ptx::thread_idx() % 32;
    for (std::uint32_t step = 1; step < 32; step *= 2) {
        const std::uint32_t other = ptx::shuffle_up(value, step);
        if (lane >= step) value += other;
    }
    return value;
}

}  // namespace gcmoe::cuda::device
