// Role 3 on the GPU: top-k partial sums and the shared expert's part.
//
// Runs after roles 1, 2 and 4 of its rank. Waits for `done` of every peer (system scope), one
// thread a peer. Reads: own combine rows, shared rows, topk_idx. Writes: y; the last CTA moves the
// state on (R25). A CTA takes items cta, cta + ctas, .. of (token, slab); a thread takes 8 columns.
// 256 threads.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
#include "cuda/device/launch_order.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/sync.cuh"
#include "numerics/bf16.hpp"
#include "protocol/done.hpp"
#include "protocol/generation.hpp"
#include "protocol/shared_ready.hpp"
#include "schedule/task_order.hpp"

namespace gcmoe::cuda::combine {

using device::GpuLaunch;
using device::GpuMemory;

inline constexpr std::uint32_t kThreads = 256;

// sum[8] += eight bf16.
__device__ __forceinline__ void add_eight(const ptx::Words4& words, float* sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum[2 * i] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] & 0xFFFF));
        sum[2 * i + 1] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] >> 16));
    }
}

// Slots whose rows a thread has in flight together.
inline constexpr std::uint32_t kSlotBatch = 4;

// Eight columns of y of one token: FP32 sum over its used slots in slot order, then the shared row,
// one rounding.
__device__ __forceinline__ void combine_columns(const GpuLaunch& gpu, std::uint32_t token,
                                                std::uint32_t column) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint64_t first_slot = std::uint64_t{token} * memory.heap.topk;
    float sum[8] = {};
    for (std::uint32_t first = 0; first < memory.heap.topk; first += kSlotBatch) {
        ptx::Words4 rows[kSlotBatch];
        bool used[kSlotBatch];
#pragma unroll
        for (std::uint32_t i = 0; i < kSlotBatch; ++i) {
            const std::uint64_t slot = first_slot + first + i;
            const std::int64_t id =
                first + i < memory.heap.topk ? memory.heap.expert_id(memory.own_heap(), slot) : -1;
            used[i] = id >= 0 && id < static_cast<std::int64_t>(gpu.num_experts);
            if (!used[i]) continue;
            rows[i] = *reinterpret_cast<const ptx::Words4*>(
                memory.heap.combine_row(memory.own_heap(), slot) + column);
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kSlotBatch; ++i) {
            if (used[i]) add_eight(rows[i], sum);
        }
    }
    if (memory.shared_chunks != 0) {
        const auto* row = memory.at<std::uint16_t>(memory.local.shared_row) +
                          std::uint64_t{token} * gpu.hidden + column;
        add_eight(*reinterpret_cast<const ptx::Words4*>(row), sum);
    }
    ptx::Words4 out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.w[i] = numerics::bf16_from_float(sum[2 * i]) |
                   static_cast<std::uint32_t>(numerics::bf16_from_float(sum[2 * i + 1])) << 16;
    }
    std::uint16_t* y = gpu.y + static_cast<std::int64_t>(token) * gpu.y_stride + column;
    *reinterpret_cast<ptx::Words4*>(y) = out;
}

// All CTAs: the launch's (token, slab of 8 * kThreads columns) pairs, dealt out one by one, so that
// one token is the work of several SMs.
__device__ __forceinline__ void combine_tokens(const GpuLaunch& gpu, std::uint32_t num_tokens) {
    const std::uint32_t slabs = ceil_div(gpu.hidden, 8 * kThreads);
    const std::uint64_t items = std::uint64_t{num_tokens} * slabs;
    for (std::uint64_t item = ptx::cta_idx(); item < items; item += ptx::num_ctas()) {
        const auto slab = static_cast<std::uint32_t>(item % slabs);
        const std::uint32_t column = 8 * (slab * kThreads + ptx::thread_idx());
        if (column < gpu.hidden)
            combine_columns(gpu, static_cast<std::uint32_t>(item / slabs), column);
    }
}

// Thread 0 of a CTA, after the CTA's last token.
__device__ __forceinline__ void finish(const GpuLaunch& gpu, const protocol::Launch& launch) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t num_blocks =
        protocol::low_word(GpuMemory::load_acquire(memory.num_blocks()));
    const schedule::TaskOrder order = device::task_order(gpu, num_blocks, launch.num_tokens);
    if (ptx::cta_idx() == 0 && memory.shared_chunks != 0) {
        protocol::top_up_shared<GpuMemory>(memory, order.shared_blocks);
    }
    protocol::DealtTasks dealt;
    dealt.tasks = schedule::num_tasks(order);
    if (gpu.has_role4 != 0) {
        dealt.tasks = schedule::num_tasks(schedule::routed_part(order));
        dealt.shared_tasks = schedule::num_tasks(schedule::shared_part(order));
        dealt.has_role4 = true;
    }
    protocol::end_launch<GpuMemory>(memory, launch, num_blocks, dealt);
}

// The whole role for one CTA. `failed`: a word in shared memory. Returns false if it left early.
__device__ __forceinline__ bool run_role3(const GpuLaunch& gpu, std::uint32_t* failed) {
    const std::uint32_t thread = ptx::thread_idx();
    const layout::RankMemory& memory = gpu.memory;
    if (thread == 0) *failed = 0;
    ptx::cta_barrier();
    protocol::Launch launch;
    bool ok = protocol::begin_launch<GpuMemory>(memory, Role::kCombine, ptx::cta_idx(),
                                                device::wait_limit(gpu), &launch);
    for (std::uint32_t peer = thread; ok && peer < memory.heap.num_ranks; peer += kThreads) {
        ok = protocol::wait_done<GpuMemory>(memory, launch, peer);
    }
    if (!ok) *failed = 1;
    ptx::cta_barrier();
    if (*failed != 0) return false;
    combine_tokens(gpu, launch.num_tokens);
    ptx::cta_barrier();
    if (thread == 0) finish(gpu, launch);
    return true;
}

}  // namespace gcmoe::cuda::combine
