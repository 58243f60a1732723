// All roles of a rank in one kernel: the first CTAs dispatch, the others compute, all of them
// combine.
//
// Runs on: all SMs of the rank, one CTA of gemm::kThreads threads each. The roles are those of the
// green contexts' kernels, with the same signals between them; role 3 follows each CTA's own role
// and is ordered behind the others by `done` and role 2's end (R35). A graph has one node instead
// of three and no edge inside. Roles 1 and 3 use the first 512 threads of a CTA: the copy warps
// leave.
//
// | step | CTAs of role 1 | CTAs of role 2 |
// | 0    | role 1         | rehearsal      |
// | 1    | rehearsal      | role 2         |
// | 2    | role 3         | role 3         |
#pragma once

#include <cstdint>

#include "cuda/combine/role3_combine.cuh"
#include "cuda/device/unit_times.cuh"
#include "cuda/dispatch/role1_dispatch.cuh"
#include "cuda/gemm/sm90_role2_gemm.cuh"

namespace gcmoe::cuda::joint {

using device::GpuLaunch;
using device::Unit;

static_assert(dispatch::kThreads == combine::kThreads && combine::kThreads == gemm::kMathThreads);

// Bytes of shared memory of a CTA: what the larger of its roles needs.
template <std::uint32_t kMaxRows>
GCMOE_HD inline std::size_t one_grid_bytes(std::uint32_t num_experts, std::uint32_t num_ranks) {
    const std::size_t dispatch_bytes = dispatch::shared_bytes(num_experts, num_ranks);
    const std::size_t compute_bytes = sizeof(gemm::SharedStorage<kMaxRows>);
    return dispatch_bytes > compute_bytes ? dispatch_bytes : compute_bytes;
}

// Role 1 or 2 of one CTA. Returns false if it left early.
template <bool kK32, std::uint32_t kMaxRows, class Gpu>
__device__ __forceinline__ bool run_first_role(const Gpu& gpu, const Unit& unit,
                                               std::uint8_t* shared) {
    const std::uint32_t dispatch_units = gpu.memory.plan.dispatch_units;
    if (unit.idx < dispatch_units) {
        device::GpuTimes* times = &gpu.dispatch_times[unit.idx];
        device::note_begin(times);
        const bool ended = dispatch::run_role1(gpu, {unit.idx, dispatch_units}, shared);
        device::note_end(times, ended);
        return ended;
    }
    const std::uint32_t idx = unit.idx - dispatch_units;
    device::GpuTimes* times = &gpu.compute_times[idx];
    device::note_begin(times);
    const bool ended =
        gemm::run_role2<kK32>(gpu, idx, reinterpret_cast<gemm::SharedStorage<kMaxRows>*>(shared));
    device::note_end(times, ended);
    return ended;
}

// The whole launch of one CTA. One place calls role 3, so that the real one finds the rehearsal's
// instructions in the caches.
template <bool kK32, std::uint32_t kMaxRows, class Gpu>
__device__ __forceinline__ void run_one_grid(const Gpu& gpu, std::uint8_t* shared) {
    const Unit unit = Unit::of_grid();
    const bool combines = ptx::thread_idx() < combine::kThreads;
    const std::uint32_t role_step = unit.idx < gpu.memory.plan.dispatch_units ? 0 : 1;
    if (role_step == 0 && !combines) return;
    device::GpuTimes* times = &gpu.combine_times[unit.idx];
#pragma unroll 1
    for (std::uint32_t step = 0; step < 3; ++step) {
        if (step == role_step) {
            if (!run_first_role<kK32, kMaxRows>(gpu, unit, shared)) return;
        } else if (combines) {
            const combine::Act act = step == 2 ? combine::Act::kReal : combine::Act::kRehearsal;
            if (step == 2) device::note_begin(times);
            const bool ended =
                combine::run_role3(gpu, unit, act, reinterpret_cast<combine::SharedWords*>(shared));
            if (step == 2) device::note_end(times, ended);
            if (step != 2) ptx::fence_async_proxy_shared();  // copies come in its words' place
            if (!ended) return;
        }
    }
}

}  // namespace gcmoe::cuda::joint
