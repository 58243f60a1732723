// Role 1 on the GPU: routing accounts, all-to-all pull of token rows into the ring.
//
// Runs on: the communication partition, one CTA per SM. Waits for: count words of every source
// (system scope), l1_empty_count (role 2). No barrier over the grid: each CTA reads all count words
// itself. Reads: own topk, peers' x, x_scale, topk_weight, received counts and lists. Writes:
// peers' recv_count and recv_slot, block table, num_blocks, rows_left targets, ring x, scales,
// origins, `done` of peers without rows.
//
// | threads        | job                                                                   |
// | CTA 0, all     | count slots per expert, write slot lists to owners, count words        |
// | all CTAs, all  | wait for every source's count words, locate entries                    |
// | CTA 0, all     | block table, targets, num_blocks, `done` without rows                  |
// | all CTAs, warp | pull rows: warp i of all warps takes rows i, i + warps, ..             |
//
// Shared memory: RowBuffers and, in part in their place, Accounts: shared_bytes().
#pragma once

#include <cstdint>

#include "cuda/device/warm_parameters.cuh"
#include "cuda/dispatch/role1_pull.cuh"
#include "cuda/dispatch/role1_warm.cuh"
#include "protocol/barrier.hpp"
#include "protocol/generation.hpp"

namespace gcmoe::cuda::dispatch {

// The whole role for the first kThreads threads of one CTA. Returns false if it left early.
template <class Gpu>
__device__ __forceinline__ bool run_role1(const Gpu& gpu, const Unit& unit, std::uint8_t* shared) {
    const std::uint32_t thread = ptx::thread_idx();
    auto* buffers = reinterpret_cast<RowBuffers*>(shared);
    const Accounts accounts = place_accounts(shared, gpu);
    const Launch& launch = buffers->launch;
    if (unit.idx + 1 == unit.num_units && thread / 32 == kWarps - 1) warm_tables(gpu);
    if (thread / 32 == kWarps - 2) {
        device::warm_parameters(gpu, reinterpret_cast<std::uint32_t*>(buffers->codes[kWarps - 1]));
        ptx::fence_async_proxy_shared();  // rows come in its place
    }
    if (thread < kWarps) {
        for (std::uint64_t& arrived : buffers->arrived[thread]) ptx::mbarrier_init(&arrived, 1);
        ptx::mbarrier_init_fence();
    }
    if (thread == 0) {
        // Read last, but not a round trip to memory later.
        ptx::prefetch_line(gpu.memory.heap.fault_word(gpu.memory.own_heap(), 0));
        const bool begun = protocol::begin_launch<GpuMemory>(
            gpu.memory, Role::kDispatch, unit.idx, device::wait_limit(gpu), &buffers->launch);
        *accounts.failed = begun ? 0 : 1;
    }
    role_barrier();
    if (*accounts.failed != 0) return false;
    log_step(gpu, launch, {trace::Kind::kBegin});
    const bool publish = gpu.dispatch_step != device::DispatchStep::kPull;
    if (thread / 32 == kWarps - 1) warm_tokens(gpu, unit, launch.num_tokens);
    if (unit.idx == 0 && publish) publish_routing(gpu, launch, accounts);
    if (gpu.dispatch_step == device::DispatchStep::kPublish) return true;
    if (!receive_routing(gpu, launch, accounts)) return false;
    log_step(gpu, launch, {trace::Kind::kReceive});
    if (unit.idx == 0) publish_blocks(gpu, launch, accounts);
    device::GpuTimes& times = gpu.dispatch_times[unit.idx];
    if (thread == 0) times.first_work_ns = ptx::global_timer_ns();
    if (!pull_rows(gpu, launch, accounts, unit, buffers)) *accounts.failed = 1;
    role_barrier();
    if (*accounts.failed != 0) return false;
    if (thread == 0) {
        times.last_work_ns = ptx::global_timer_ns();
        protocol::leave_role1<GpuMemory>(gpu.memory);
    }
    return true;
}

}  // namespace gcmoe::cuda::dispatch
