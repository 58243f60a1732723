// The kernel of one instance of role 2 and its launch; included by the instances' .cu files only.
#pragma once

#if !defined(GCMOE_INLINE_COLD)
#error "cmake/gcmoe_cuda.cmake defines it for this file: see base/host_device.hpp"
#endif

#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"
#include "cuda/gemm/sm90_role2_gemm.cuh"
#include "cuda/gemm/sm90_role2_gemm.hpp"

namespace gcmoe::cuda::gemm {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   role2_kernel<false, 16, false>: registers 96, spills 60 / 60
//   role2_kernel<false, 16, true>: registers 96, spills 72 / 80
//   role2_kernel<false, 32, false>: registers 96, spills 68 / 72
//   role2_kernel<false, 32, true>: registers 96, spills 80 / 92
//   role2_kernel<false, 64, false>: registers 96, spills 144 / 232
//   role2_kernel<false, 64, true>: registers 96, spills 152 / 248
//   role2_kernel<true, 16, false>: registers 96, spills 56 / 56
//   role2_kernel<true, 16, true>: registers 96, spills 68 / 76
//   role2_kernel<true, 32, false>: registers 96, spills 56 / 56
//   role2_kernel<true, 32, true>: registers 96, spills 68 / 76
//   role2_kernel<true, 64, false>: registers 96, spills 208 / 252
//   role2_kernel<true, 64, true>: registers 96, spills 216 / 260
template <bool kK32, std::uint32_t kMaxRows, bool kTraced>
__global__ void __launch_bounds__(kThreads, 1)
    role2_kernel(const __grid_constant__ device::LaunchOf<kTraced> launch) {
    extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
    if (launch.is_warm_up != 0) return;
    // Role 3 waits for its data by signals, and for this CTA to leave its SM.
    if (launch.memory.plan.combine_on == layout::CombineOn::kFollow) ptx::launch_dependents();
    device::GpuTimes* units = launch.is_role4 != 0 ? launch.shared_times : launch.compute_times;
    device::GpuTimes* times = &units[ptx::cta_idx()];
    device::note_begin(times);
    auto* shared = reinterpret_cast<SharedStorage<kMaxRows>*>(shared_bytes);
    device::note_end(times, run_role2<kK32>(launch, ptx::cta_idx(), shared));
}

template <bool kK32, std::uint32_t kMaxRows>
inline constexpr device::RoleKernels kRole2Kernels{&role2_kernel<kK32, kMaxRows, false>,
                                                   &role2_kernel<kK32, kMaxRows, true>};

template <bool kK32, std::uint32_t kMaxRows>
cudaError_t prepare_role2_instance() {
    return kRole2Kernels<kK32, kMaxRows>.prepare(
        kThreads, device::one_cta_per_sm(sizeof(SharedStorage<kMaxRows>)));
}

template <bool kK32, std::uint32_t kMaxRows>
cudaError_t launch_role2_instance(const device::GpuLaunch& launch, cudaStream_t stream) {
    constexpr std::size_t kBytes = device::one_cta_per_sm(sizeof(SharedStorage<kMaxRows>));
    const layout::PlanMemory& plan = launch.memory.plan;
    const unsigned units = launch.is_role4 != 0 ? plan.dispatch_units : plan.compute_units;
    return kRole2Kernels<kK32, kMaxRows>.launch({units, kThreads, kBytes}, launch, stream);
}

}  // namespace gcmoe::cuda::gemm
