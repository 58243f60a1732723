#include "cuda/combine/role3_combine.cuh"
#include "cuda/combine/role3_combine.hpp"
#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"

namespace gcmoe::cuda::combine {
namespace {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   role3_kernel<false>: registers 78, spills 188 / 65
//   role3_kernel<true>: registers 82, spills 188 / 65
// Arguments of calls after faults and in waits of 0.1 ms and more: no other launch stores them.
template <bool kTraced>
__global__ void __launch_bounds__(kThreads, 1)
    role3_kernel(const __grid_constant__ device::LaunchOf<kTraced> launch) {
    __shared__ __align__(16) std::uint8_t shared_bytes[sizeof(SharedWords)];
    if (launch.is_warm_up != 0) return;
    device::GpuTimes* times = &launch.combine_times[ptx::cta_idx()];
    device::note_begin(times);
    auto* shared = reinterpret_cast<SharedWords*>(shared_bytes);
    device::note_end(times, run_role3(launch, device::Unit::of_grid(), Act::kReal, shared));
}

constexpr device::RoleKernels kKernels{&role3_kernel<false>, &role3_kernel<true>};

}  // namespace

cudaError_t prepare_role3() { return kKernels.prepare(kThreads, 0); }

cudaError_t launch_role3(const device::GpuLaunch& launch, cudaStream_t stream) {
    const bool follows = launch.memory.plan.combine_on == layout::CombineOn::kFollow;
    return kKernels.launch({launch.memory.plan.compute_units, kThreads, 0}, launch, stream,
                           follows ? device::Order::kAhead : device::Order::kAfter);
}

}  // namespace gcmoe::cuda::combine
