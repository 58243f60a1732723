// A kernel's parameters into the SM's constant caches, all lines at once.
#pragma once

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::device {

inline constexpr std::uint32_t kConstantLine = 64;  // bytes

// One warp, first of all. A role meets its parameters one line behind the other, each a round trip
// to the L2 when a launch is new to the SM; this warp has nothing else to wait for. `scratch`: (32)
// words in shared memory: what nobody uses, the compiler does not load.
__device__ __forceinline__ void warm_parameters(const GpuLaunch& gpu, std::uint32_t* scratch) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(&gpu);
    constexpr std::uint32_t kWords = sizeof(GpuLaunch) / 4;
    constexpr std::uint32_t kStep = kConstantLine / 4;
    std::uint32_t all = 0;
#pragma unroll 1
    for (std::uint32_t i = ptx::thread_idx() % 32 * kStep; i < kWords; i += 32 * kStep) {
        all ^= words[i];
    }
    scratch[ptx::thread_idx() % 32] = all;
}

}  // namespace gcmoe::cuda::device
