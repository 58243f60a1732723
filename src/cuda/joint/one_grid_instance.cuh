// The kernel of one instance of the one grid and its launch; included by the instances' .cu files
// only.
#pragma once

#if !defined(GCMOE_INLINE_COLD)
#error "cmake/gcmoe_cuda.cmake defines it for this file: see base/host_device.hpp"
#endif

#include "cuda/device/prepare_kernel.cuh"
#include "cuda/joint/one_grid.cuh"
#include "cuda/joint/one_grid.hpp"

namespace gcmoe::cuda::joint {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   one_grid_kernel<false, 16, false>: registers 96, spills 276 / 424
//   one_grid_kernel<false, 16, true>: registers 96, spills 276 / 428
//   one_grid_kernel<false, 32, false>: registers 96, spills 312 / 476
//   one_grid_kernel<false, 32, true>: registers 96, spills 316 / 492
//   one_grid_kernel<false, 64, false>: registers 96, spills 700 / 1120
//   one_grid_kernel<false, 64, true>: registers 96, spills 704 / 1136
//   one_grid_kernel<true, 16, false>: registers 96, spills 296 / 424
//   one_grid_kernel<true, 16, true>: registers 96, spills 256 / 392
//   one_grid_kernel<true, 32, false>: registers 96, spills 276 / 424
//   one_grid_kernel<true, 32, true>: registers 96, spills 276 / 428
//   one_grid_kernel<true, 64, false>: registers 96, spills 616 / 856
//   one_grid_kernel<true, 64, true>: registers 96, spills 624 / 864
template <bool kK32, std::uint32_t kMaxRows, bool kTraced>
__global__ void __launch_bounds__(gemm::kThreads, 1)
    one_grid_kernel(const __grid_constant__ device::LaunchOf<kTraced> launch) {
    extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
    if (launch.is_warm_up != 0) return;
    run_one_grid<kK32, kMaxRows>(launch, shared_bytes);
}

template <bool kK32, std::uint32_t kMaxRows>
inline constexpr device::RoleKernels kOneGridKernels{&one_grid_kernel<kK32, kMaxRows, false>,
                                                     &one_grid_kernel<kK32, kMaxRows, true>};

template <bool kK32, std::uint32_t kMaxRows>
cudaError_t prepare_one_grid_instance() {
    return kOneGridKernels<kK32, kMaxRows>.prepare(gemm::kThreads, device::kMostSharedBytes);
}

template <bool kK32, std::uint32_t kMaxRows>
cudaError_t launch_one_grid_instance(const device::GpuLaunch& launch, cudaStream_t stream) {
    const layout::RankMemory& memory = launch.memory;
    const std::size_t bytes =
        device::one_cta_per_sm(one_grid_bytes<kMaxRows>(launch.num_experts, memory.heap.num_ranks));
    const unsigned units = memory.plan.dispatch_units + memory.plan.compute_units;
    return kOneGridKernels<kK32, kMaxRows>.launch({units, gemm::kThreads, bytes}, launch, stream);
}

}  // namespace gcmoe::cuda::joint
