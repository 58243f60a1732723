#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "cuda/dispatch/role1_dispatch.hpp"

namespace gcmoe::cuda::dispatch {
namespace {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   role1_kernel<false>: registers 80, spills 244 / 65
//   role1_kernel<true>: registers 80, spills 244 / 65
// Arguments of calls after faults and in waits of 0.1 ms and more: no other launch stores them.
template <bool kTraced>
__global__ void __launch_bounds__(kThreads, 1)
    role1_kernel(const __grid_constant__ device::LaunchOf<kTraced> launch) {
    extern __shared__ __align__(128) std::uint8_t shared_bytes[];
    if (launch.is_warm_up != 0) return;
    device::GpuTimes* times = &launch.dispatch_times[ptx::cta_idx()];
    device::note_begin(times);
    device::note_end(times, run_role1(launch, device::Unit::of_grid(), shared_bytes));
}

constexpr device::RoleKernels kKernels{&role1_kernel<false>, &role1_kernel<true>};

}  // namespace

std::size_t role1_shared_bytes(std::uint32_t num_experts, std::uint32_t num_ranks) {
    return shared_bytes(num_experts, num_ranks);
}

cudaError_t prepare_role1() { return kKernels.prepare(kThreads, device::kMostSharedBytes); }

cudaError_t launch_role1(const device::GpuLaunch& launch, cudaStream_t stream) {
    const std::size_t bytes = device::one_cta_per_sm(
        role1_shared_bytes(launch.num_experts, launch.memory.heap.num_ranks));
    return kKernels.launch({launch.memory.plan.dispatch_units, kThreads, bytes}, launch, stream);
}

}  // namespace gcmoe::cuda::dispatch
