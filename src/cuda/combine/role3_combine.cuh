// Role 3 on the GPU: top-k partial sums and the shared expert's part.
//
// Runs after roles 1 and 2 of its rank. Waits for `done` of every peer (system scope), one thread a
// peer. Reads: own combine rows, shared rows, topk_idx. Writes: y; the last CTA moves the state on
// (R25). A CTA takes tokens cta, cta + ctas, ..; a thread takes 8 columns at a time. 256 threads.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
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

// sum[8] += eight bf16 of a row.
__device__ __forceinline__ void add_eight(const std::uint16_t* row, float* sum) {
    const auto words = *reinterpret_cast<const ptx::Words4*>(row);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum[2 * i] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] & 0xFFFF));
        sum[2 * i + 1] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] >> 16));
    }
}

// y of one token: FP32 sum over its used slots in slot order, then the shared row, one rounding.
__device__ __forceinline__ void combine_token(const GpuLaunch& gpu, std::uint32_t token) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint64_t first_slot = std::uint64_t{token} * memory.heap.topk;
    for (std::uint32_t column = 8 * ptx::thread_idx(); column < gpu.hidden;
         column += 8 * kThreads) {
        float sum[8] = {};
        for (std::uint32_t k = 0; k < memory.heap.topk; ++k) {
            const std::int64_t id = memory.heap.expert_id(memory.own_heap(), first_slot + k);
            if (id < 0 || id >= static_cast<std::int64_t>(gpu.num_experts)) continue;
            add_eight(memory.heap.combine_row(memory.own_heap(), first_slot + k) + column, sum);
        }
        if (memory.shared_chunks != 0) {
            add_eight(memory.at<std::uint16_t>(memory.local.shared_row) +
                          std::uint64_t{token} * gpu.hidden + column,
                      sum);
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
}

// Thread 0 of a CTA, after the CTA's last token.
__device__ __forceinline__ void finish(const GpuLaunch& gpu, const protocol::Launch& launch) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t num_blocks =
        protocol::low_word(GpuMemory::load_acquire(memory.num_blocks()));
    schedule::TaskOrder order;
    order.num_blocks = num_blocks;
    order.n1 = memory.plan.n1;
    order.n2 = memory.plan.n2;
    order.shared_n1 = memory.shared_chunks;
    order.shared_blocks =
        memory.shared_chunks == 0 ? 0 : ceil_div(launch.num_tokens, memory.plan.row_block);
    if (ptx::cta_idx() == 0 && memory.shared_chunks != 0) {
        protocol::top_up_shared<GpuMemory>(memory, order.shared_blocks);
    }
    protocol::end_launch<GpuMemory>(memory, launch, num_blocks, schedule::num_tasks(order));
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
    for (std::uint32_t token = ptx::cta_idx(); token < launch.num_tokens;
         token += ptx::num_ctas()) {
        combine_token(gpu, token);
    }
    ptx::cta_barrier();
    if (thread == 0) finish(gpu, launch);
    return true;
}

}  // namespace gcmoe::cuda::combine
