#include "cuda/combine/role3_combine.cuh"
#include "cuda/combine/role3_combine.hpp"
#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"

namespace gcmoe::cuda::combine {
namespace {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   role3_kernel: registers 86, spills 0 / 0
__global__ void __launch_bounds__(kThreads, 1)
    role3_kernel(const __grid_constant__ device::GpuLaunch launch) {
    __shared__ __align__(16) std::uint8_t shared_bytes[sizeof(SharedWords)];
    if (launch.is_warm_up != 0) return;
    device::GpuTimes* times = &launch.combine_times[ptx::cta_idx()];
    device::note_begin(times);
    auto* shared = reinterpret_cast<SharedWords*>(shared_bytes);
    device::note_end(times, run_role3(launch, device::Unit::of_grid(), Act::kReal, shared));
}

}  // namespace

cudaError_t prepare_role3() { return device::prepare_kernel(&role3_kernel, kThreads, 0); }

cudaError_t launch_role3(const device::GpuLaunch& launch, cudaStream_t stream) {
    const bool follows = launch.memory.plan.combine_on == layout::CombineOn::kFollow;
    return device::launch_kernel(&role3_kernel, {launch.memory.plan.compute_units, kThreads, 0},
                                 launch, stream,
                                 follows ? device::Order::kAhead : device::Order::kAfter);
}

}  // namespace gcmoe::cuda::combine
