#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "cuda/dispatch/role1_dispatch.hpp"

namespace gcmoe::cuda::dispatch {
namespace {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   role1_kernel: registers 56, spills 0 / 0
__global__ void __launch_bounds__(kThreads, 1)
    role1_kernel(const __grid_constant__ device::GpuLaunch launch) {
    extern __shared__ std::uint32_t shared_words[];
    if (launch.is_warm_up != 0) return;
    device::GpuTimes* times = &launch.dispatch_times[ptx::cta_idx()];
    device::note_begin(times);
    device::note_end(times, run_role1(launch, shared_words));
}

std::size_t shared_bytes(const device::GpuLaunch& launch) {
    const layout::SymmetricHeap& heap = launch.memory.heap;
    return device::one_cta_per_sm(
        4 * std::size_t{account_words(launch.num_experts, heap.num_ranks, heap.experts_per_rank)});
}

}  // namespace

cudaError_t prepare_role1() {
    return device::prepare_kernel(&role1_kernel, kThreads, device::kOneCtaPerSmBytes);
}

cudaError_t launch_role1(const device::GpuLaunch& launch, cudaStream_t stream) {
    return device::launch_kernel(
        &role1_kernel, {launch.memory.plan.dispatch_units, kThreads, shared_bytes(launch)}, launch,
        stream);
}

}  // namespace gcmoe::cuda::dispatch
