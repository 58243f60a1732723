// Roles 1 and 3 in one kernel, on the communication partition.
//
// Role 3 follows role 1 on the same CTAs and waits for `done`, and where it needs to for role 2's
// end, by signals: no launch lies between a launch's last row and its sums. That saves a node of
// the graph and the edges into it; the sums have the communication SMs alone, so it pays for few
// tokens (figures: docs/tuning.md).
#include "cuda/combine/role3_combine.cuh"
#include "cuda/device/prepare_kernel.cuh"
#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "cuda/dispatch/role1_dispatch.hpp"
#include "cuda/joint/dispatch_combine.hpp"

namespace gcmoe::cuda::joint {
namespace {

// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
//   dispatch_combine_kernel<false>: registers 96, spills 384 / 65
//   dispatch_combine_kernel<true>: registers 92, spills 384 / 65
// Arguments of calls after faults and in waits of 0.1 ms and more: no other launch stores them.
template <bool kTraced>
__global__ void __launch_bounds__(dispatch::kThreads, 1)
    dispatch_combine_kernel(const __grid_constant__ device::LaunchOf<kTraced> launch) {
    extern __shared__ __align__(128) std::uint8_t shared_bytes[];
    if (launch.is_warm_up != 0) return;
    const device::Unit unit = device::Unit::of_grid();
    device::GpuTimes* dispatch_times = &launch.dispatch_times[unit.idx];
    device::note_begin(dispatch_times);
    const bool dispatched = dispatch::run_role1(launch, unit, shared_bytes);
    device::note_end(dispatch_times, dispatched);
    if (!dispatched) return;
    device::GpuTimes* combine_times = &launch.combine_times[unit.idx];
    device::note_begin(combine_times);
    bool combined = true;
#pragma unroll 1  // the real one finds its instructions in the cache
    for (std::uint32_t i = 0; combined && i < 2; ++i) {
        const combine::Act act = i == 0 ? combine::Act::kRehearsal : combine::Act::kReal;
        combined = combine::run_role3(launch, unit, act,
                                      reinterpret_cast<combine::SharedWords*>(shared_bytes));
    }
    device::note_end(combine_times, combined);
}

constexpr device::RoleKernels kKernels{&dispatch_combine_kernel<false>,
                                       &dispatch_combine_kernel<true>};

}  // namespace

cudaError_t prepare_dispatch_combine() {
    return kKernels.prepare(dispatch::kThreads, device::kMostSharedBytes);
}

cudaError_t launch_dispatch_combine(const device::GpuLaunch& launch, cudaStream_t stream) {
    const std::size_t bytes = device::one_cta_per_sm(
        dispatch::role1_shared_bytes(launch.num_experts, launch.memory.heap.num_ranks));
    return kKernels.launch({launch.memory.plan.dispatch_units, dispatch::kThreads, bytes}, launch,
                           stream);
}

}  // namespace gcmoe::cuda::joint
