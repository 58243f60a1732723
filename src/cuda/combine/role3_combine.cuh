// Role 3 on the GPU: top-k partial sums and the shared expert's part.
//
// Runs after roles 1, 2 and 4 of its rank, or (combine_on_dispatch) as the end of role 1's kernel.
// Waits for `done` of every peer (system scope), one thread a peer; then, as the end of role 1, for
// role 2's end (R34, R35). Reads: own combine rows, shared rows, topk_idx. Writes: y; the last CTA
// moves the state on (R25). An item is 8 columns of a token; thread t of all threads takes items t,
// t + threads, ..
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

inline constexpr std::uint32_t kThreads = 256;  // of the kernel of its own

// sum[8] += eight bf16.
__device__ __forceinline__ void add_eight(const ptx::Words4& words, float* sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum[2 * i] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] & 0xFFFF));
        sum[2 * i + 1] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] >> 16));
    }
}

// Slots whose rows a thread has in flight together.
inline constexpr std::uint32_t kSlotBatch = 8;

// A rehearsal reads own x in place of the rows, and stores nothing: it brings the instructions into
// the SM's cache while there is nothing else to do (4 us at the end of a launch otherwise).
enum class Act : std::uint8_t { kRehearsal, kReal };

// Eight columns of y of one token: FP32 sum over its used slots in slot order, then the shared row,
// one rounding.
__device__ __forceinline__ void combine_columns(const GpuLaunch& gpu, std::uint32_t token,
                                                std::uint32_t column, Act act) {
    const layout::RankMemory& memory = gpu.memory;
    const bool is_real = act == Act::kReal;
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
            const std::uint8_t* row = memory.own_heap() + memory.heap.x;
            if (is_real) {
                row = reinterpret_cast<const std::uint8_t*>(
                    memory.heap.combine_row(memory.own_heap(), slot) + column);
            }
            rows[i] = *reinterpret_cast<const ptx::Words4*>(row);
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kSlotBatch; ++i) {
            if (used[i]) add_eight(rows[i], sum);
        }
    }
    if (memory.shared_chunks != 0 && is_real) {
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
    if (!is_real) return;
    std::uint16_t* y = gpu.y + static_cast<std::int64_t>(token) * gpu.y_stride + column;
    *reinterpret_cast<ptx::Words4*>(y) = out;
}

// All threads of all CTAs; a rehearsal takes one token.
__device__ __forceinline__ void combine_tokens(const GpuLaunch& gpu, std::uint32_t num_tokens,
                                               Act act) {
    if (act == Act::kRehearsal && num_tokens > 1) num_tokens = 1;
    const std::uint32_t items_of_token = gpu.hidden / 8;
    const std::uint64_t items = std::uint64_t{num_tokens} * items_of_token;
    const std::uint32_t threads = ptx::num_threads() * ptx::num_ctas();
#pragma unroll 1
    for (std::uint64_t item = ptx::num_threads() * ptx::cta_idx() + ptx::thread_idx(); item < items;
         item += threads) {
        const schedule::Split at = schedule::split(item, items_of_token);
        combine_columns(gpu, at.block, 8 * at.index, act);
    }
}

// Thread 0 of a CTA, after the CTA's last token.
__device__ __forceinline__ bool finish(const GpuLaunch& gpu, const protocol::Launch& launch) {
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
    return protocol::end_launch<GpuMemory>(memory, launch, num_blocks, dealt);
}

// One thread: everything that the launch's sums need has been stored.
__device__ __forceinline__ bool wait_rows(const GpuLaunch& gpu, const protocol::Launch& launch) {
    const layout::RankMemory& memory = gpu.memory;
    bool ok = true;
    for (std::uint32_t peer = ptx::thread_idx(); ok && peer < memory.heap.num_ranks;
         peer += ptx::num_threads()) {
        ok = protocol::wait_done<GpuMemory>(memory, launch, peer);
    }
    if (ok && ptx::thread_idx() == 0) {
        ok = protocol::wait_shared_rows<GpuMemory>(memory, launch);
    }
    return ok;
}

// The whole role for one CTA. `failed`: a word in shared memory. Returns false if it left early.
__device__ __forceinline__ bool run_role3(const GpuLaunch& gpu, std::uint32_t* failed) {
    const std::uint32_t thread = ptx::thread_idx();
    const layout::RankMemory& memory = gpu.memory;
    if (thread == 0) *failed = 0;
    ptx::cta_barrier();
    protocol::Launch launch;
    const bool begun = protocol::begin_launch<GpuMemory>(memory, Role::kCombine, ptx::cta_idx(),
                                                         device::wait_limit(gpu), &launch);
    bool rehearses = memory.plan.combine_on_dispatch != 0;
#pragma unroll 1
    for (;;) {
        if (!rehearses && !(begun && wait_rows(gpu, launch))) *failed = 1;
        ptx::cta_barrier();
        if (*failed != 0) return false;
        combine_tokens(gpu, launch.num_tokens, rehearses ? Act::kRehearsal : Act::kReal);
        ptx::cta_barrier();
        if (!rehearses) break;
        rehearses = false;
    }
    if (thread == 0 && !finish(gpu, launch)) *failed = 1;
    ptx::cta_barrier();
    return *failed == 0;
}

}  // namespace gcmoe::cuda::combine
