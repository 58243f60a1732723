// Role 3 on the GPU: top-k partial sums and the shared expert's part.
//
// Runs after roles 1, 2 and 4 of its rank, or behind role 1 or both roles in their kernel. Waits
// for `done` of every peer (system scope), one thread a peer; then, in such a kernel, for role 2's
// end (R34, R35). Reads: own combine rows, shared rows, topk_idx. Writes: y; the last CTA moves the
// state on (R25). An item is 256 columns of a token, 8 a lane; warp w of all warps, neighbours on
// different SMs, takes items w, w + warps, ..
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
#include "cuda/device/launch_order.cuh"
#include "cuda/device/unit.cuh"
#include "cuda/device/unit_log.cuh"
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
using device::Unit;

inline constexpr std::uint32_t kThreads = 512;
// Among the role's threads: a CTA may have more.
__device__ __forceinline__ void role_barrier() {
    ptx::named_barrier(device::kRoleBarrier, kThreads);
}
inline constexpr std::uint32_t kLaneColumns = 8;
inline constexpr std::uint32_t kWarpColumns = 32 * kLaneColumns;

// sum[8] += eight bf16.
__device__ __forceinline__ void add_eight(const ptx::Words4& words, float* sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum[2 * i] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] & 0xFFFF));
        sum[2 * i + 1] += numerics::bf16_to_float(static_cast<std::uint16_t>(words.w[i] >> 16));
    }
}

// Slots whose rows a lane has in flight together.
inline constexpr std::uint32_t kSlotBatch = 8;

// Lane i < kSlotBatch: the expert of slot `first` + i of a token; -1 = none.
__device__ __forceinline__ std::int64_t expert_of_slot(const GpuLaunch& gpu, std::uint32_t token,
                                                       std::uint32_t first) {
    const layout::SymmetricHeap& heap = gpu.memory.heap;
    const std::uint32_t in_token = first + ptx::thread_idx() % 32;
    if (ptx::thread_idx() % 32 >= kSlotBatch || in_token >= heap.topk) return -1;
    return heap.expert_id(gpu.memory.own_heap(), std::uint64_t{token} * heap.topk + in_token);
}

// Whole warp: bit i is set if lane i's slot is used.
__device__ __forceinline__ std::uint32_t used_slots(const GpuLaunch& gpu, std::int64_t expert) {
    return ptx::ballot(expert >= 0 && expert < static_cast<std::int64_t>(gpu.num_experts));
}

// A rehearsal reads own x in place of the rows, and stores nothing: it brings the instructions into
// the SM's cache while there is nothing else to do (4 us at the end of a launch otherwise).
enum class Act : std::uint8_t { kRehearsal, kReal };

// sum[8] += the rows of the slots from `first` on that `used` names, eight columns from `column`.
__device__ __forceinline__ void add_slots(const GpuLaunch& gpu, std::uint64_t first,
                                          std::uint32_t used, std::uint32_t column, Act act,
                                          float* sum) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint16_t* from = memory.heap.combine_row(memory.own_heap(), first) + column;
    std::uint64_t step = memory.heap.combine_stride / 2;
    if (act == Act::kRehearsal) {
        from = reinterpret_cast<const std::uint16_t*>(memory.own_heap() + memory.heap.x);
        step = 0;
    }
    ptx::Words4 rows[kSlotBatch];
#pragma unroll
    for (std::uint32_t i = 0; i < kSlotBatch; ++i) {
        if ((used >> i & 1) != 0) rows[i] = *reinterpret_cast<const ptx::Words4*>(from + i * step);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kSlotBatch; ++i) {
        if ((used >> i & 1) != 0) add_eight(rows[i], sum);
    }
}

// One warp: 256 columns of y of one token, FP32 sum over its used slots in slot order, then the
// shared row, one rounding. `used`: of the first kSlotBatch slots.
__device__ __forceinline__ void combine_columns(const GpuLaunch& gpu, const schedule::Split& item,
                                                std::uint32_t used, Act act) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t token = item.block;
    const std::uint32_t column =
        kWarpColumns * item.index + kLaneColumns * (ptx::thread_idx() % 32);
    const bool has_columns = column < gpu.hidden;
    const std::uint64_t first_slot = std::uint64_t{token} * memory.heap.topk;
    float sum[kLaneColumns] = {};
#pragma unroll 1
    for (std::uint32_t first = 0; first < memory.heap.topk; first += kSlotBatch) {
        if (first != 0) used = used_slots(gpu, expert_of_slot(gpu, token, first));
        if (has_columns) add_slots(gpu, first_slot + first, used, column, act, sum);
    }
    if (act == Act::kRehearsal || !has_columns) return;
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

// All warps of all CTAs; a rehearsal takes one token. The next item's slots are looked up while
// this one's rows are on their way.
__device__ __forceinline__ void combine_tokens(const GpuLaunch& gpu, const Unit& unit,
                                               std::uint32_t num_tokens, Act act) {
    if (act == Act::kRehearsal && num_tokens > 1) num_tokens = 1;
    const std::uint32_t items_of_token = ceil_div(gpu.hidden, kWarpColumns);
    const std::uint64_t items = std::uint64_t{num_tokens} * items_of_token;
    const std::uint32_t warps = kThreads / 32 * unit.num_units;
    std::uint64_t item = ptx::thread_idx() / 32 * unit.num_units + unit.idx;
    std::int64_t expert = -1;
    if (item < items) {
        expert = expert_of_slot(gpu, schedule::split(item, items_of_token).block, 0);
    }
#pragma unroll 1
    while (item < items) {
        const schedule::Split at = schedule::split(item, items_of_token);
        const std::uint32_t used = used_slots(gpu, expert);
        item += warps;
        if (item < items) {
            expert = expert_of_slot(gpu, schedule::split(item, items_of_token).block, 0);
        }
        combine_columns(gpu, at, used, act);
    }
}

// Thread 0 of a CTA, after the CTA's last token.
__device__ __forceinline__ bool finish(const GpuLaunch& gpu, const Unit& unit,
                                       const protocol::Launch& launch) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t num_blocks =
        protocol::low_word(GpuMemory::load_acquire(memory.num_blocks()));
    const schedule::TaskOrder order = device::task_order(gpu, num_blocks, launch.num_tokens);
    if (unit.idx == 0 && memory.shared_chunks != 0) {
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
#pragma unroll 1
    for (std::uint32_t peer = ptx::thread_idx(); ok && peer < memory.heap.num_ranks;
         peer += kThreads) {
        ok = protocol::wait_done<GpuMemory>(memory, launch, peer);
    }
    if (ok && ptx::thread_idx() == 0) {
        ok = protocol::wait_shared_rows<GpuMemory>(memory, launch);
    }
    return ok;
}

// The CTA's words in shared memory.
struct SharedWords {
    protocol::Launch launch;
    std::uint32_t failed;  // 1: somebody gave up, all leave
};

// Thread 0 of a CTA: a step of the real act has ended that did not begin before `begin_ns`.
template <class Gpu>
__device__ __forceinline__ void log_step(const Gpu& gpu, const protocol::Launch& launch, Act act,
                                         const device::LogSite& site, std::uint64_t begin_ns) {
    if constexpr (device::kKeepsLogs<Gpu>) {
        if (act == Act::kRehearsal || ptx::thread_idx() != 0) return;
        device::log_step(&gpu.logs.combine[launch.unit], launch, site, begin_ns);
    }
}

// The whole role, or its rehearsal, for the first kThreads threads of one CTA. Returns false if it
// left early.
template <class Gpu>
__device__ __forceinline__ bool run_role3(const Gpu& gpu, const Unit& unit, Act act,
                                          SharedWords* shared) {
    const std::uint32_t thread = ptx::thread_idx();
    const protocol::Launch& launch = shared->launch;
    if (thread == 0) {
        const bool begun = protocol::begin_launch<GpuMemory>(
            gpu.memory, Role::kCombine, unit.idx, device::wait_limit(gpu), &shared->launch);
        shared->failed = begun ? 0 : 1;
    }
    role_barrier();
    if (shared->failed != 0) return false;
    const std::uint64_t begin_ns = device::log_clock(gpu);
    if (act == Act::kReal && !wait_rows(gpu, launch)) shared->failed = 1;
    role_barrier();
    if (shared->failed != 0) return false;
    log_step(gpu, launch, act, {.kind = trace::Kind::kWait, .signal = Signal::kDone}, begin_ns);
    combine_tokens(gpu, unit, launch.num_tokens, act);
    role_barrier();
    if (act == Act::kRehearsal) return true;
    log_step(gpu, launch, act, {trace::Kind::kCombine}, begin_ns);
    if (thread == 0 && !finish(gpu, unit, launch)) shared->failed = 1;
    role_barrier();
    return shared->failed == 0;
}

}  // namespace gcmoe::cuda::combine
