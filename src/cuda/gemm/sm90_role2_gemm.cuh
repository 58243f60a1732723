// Role 2 on Hopper: grouped GEMMs of the routed experts and of the shared one, tasks in ticket
// order.
//
// Runs on: the compute partition, one CTA of 640 threads per SM. Waits for: num_blocks, block table
// and l1_full_count (role 1); l2_empty_count, l2_full_mask, shared_ready (earlier tasks). Reads:
// ring x and activations with their origins, packed weights, own x for the shared expert. Writes:
// activations, peers' combine rows, shared rows, `done` of peers whose last row it was.
//
// A first-GEMM task is 128 columns: 4 row tiles of 64 packed rows, gate and up of a column in rows
// g and g + 8 of a slab. A second-GEMM task is 256 columns. N = live rows rounded up to 8.
// Registers: 96 at launch; math warps take 104, copy warps give down to 40.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_copy_warps.cuh"
#include "cuda/gemm/sm90_epilogue.cuh"
#include "protocol/barrier.hpp"
#include "protocol/generation.hpp"

namespace gcmoe::cuda::gemm {

// The CTA's pool is 640 x 96; more than it holds would wait for ever: 512 x 104 + 128 x 40 <= 640
// x 96.
inline constexpr int kMathRegisters = 104;
inline constexpr int kCopyRegisters = 40;

// The routed matrix of a task; null for the shared expert.
__device__ __forceinline__ const GpuMatrix* routed_matrix(const GpuLaunch& gpu,
                                                          const GpuTask& task) {
    if (is_shared(task.kind)) return nullptr;
    const GpuExpert& expert = gpu.experts[task.expert];
    return is_first(task.kind) ? &expert.first : &expert.second;
}

__device__ __forceinline__ TaskWeights task_weights(const GpuLaunch& gpu, const GpuTask& task,
                                                    const MathThread& me, std::uint32_t chunks) {
    TaskWeights weights{nullptr, nullptr, nullptr, 1};
    const std::uint64_t tile = std::uint64_t{row_tile_of(task, me.warpgroup)} * chunks;
    if (is_shared(task.kind)) {
        const GpuFp8Matrix& matrix = is_first(task.kind) ? gpu.shared_first : gpu.shared_second;
        weights.fp8 = matrix.tiles + tile * layout::kFp8TileBytes;
        weights.fp8_scales = matrix.scales + tile * 64 * matrix.groups;
        weights.fp8_groups = matrix.groups;
        return weights;
    }
    const GpuMatrix* matrix = routed_matrix(gpu, task);
    if (matrix->chunk_factors != nullptr) weights.chunk_factors = matrix->chunk_factors + tile * 64;
    return weights;
}

// One task for N tokens.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_task(const EpilogueTask<kMaxRows>& at, MathCursors* cursors) {
    const std::uint32_t chunks = chunks_of(at.gpu.memory, at.task.kind);
    const bool active =
        row_tile_of(at.task, at.me.warpgroup) < row_tiles(at.gpu.memory, at.task.kind);
    const TaskWeights weights = task_weights(at.gpu, at.task, at.me, chunks);
    float sum[kN / 2];
    run_main_loop<kN, kFp8, kK32>(at.shared, at.me, weights, chunks, active, cursors, sum);
    const GpuMatrix* matrix = routed_matrix(at.gpu, at.task);
    if (is_first(at.task.kind)) {
        finish_first<kN, kK32>(at, matrix, sum);
    } else {
        finish_second<kN>(at, matrix, sum, active);
    }
}

// The instance for the task's number of rows.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_task_of_rows(const EpilogueTask<kMaxRows>& at,
                                                 MathCursors* cursors) {
    if constexpr (kN > 8) {
        if (at.task.rows <= kN - 8) {
            run_task_of_rows<kN - 8, kFp8, kK32>(at, cursors);
            return;
        }
    }
    run_task<kN, kFp8, kK32>(at, cursors);
}

// A math thread's whole launch.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_math(const GpuLaunch& gpu, const Launch& launch,
                                         SharedStorage<kMaxRows>* shared) {
    MathCursors cursors;
    for (;;) {
        const std::uint32_t slot = cursors.slots.stage;
        wait_phase(&shared->task_full[slot], cursors.slots.phase, &shared->abort);
        // A barrier decides for all math threads alike whether the CTA goes on.
        math_barrier();
        const bool stop = aborted(&shared->abort);
        math_barrier();
        if (stop) return;
        const GpuTask task = shared->tasks[slot];
        if (task.is_end != 0) return;
        const EpilogueTask<kMaxRows> at{gpu, launch, shared, task, slot, MathThread::here()};
        if (is_shared(task.kind)) {
            run_task_of_rows<kMaxRows, true, kK32>(at, &cursors);
        } else {
            run_task_of_rows<kMaxRows, false, kK32>(at, &cursors);
        }
        ptx::warp_barrier();
        if (ptx::thread_idx() % 32 == 0) ptx::mbarrier_arrive(&shared->task_empty[slot]);
        cursors.slots.advance();
    }
}

// The signal warp's whole launch.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void run_signals(const GpuLaunch& gpu, const Launch& launch,
                                            SharedStorage<kMaxRows>* shared) {
    const std::uint32_t lane = ptx::thread_idx() % 32;
    std::uint32_t num_blocks = 0;
    bool ok = true;
    if (lane == 0) {
        ok = (gpu.overlap != 0 || protocol::wait_role1_left<GpuMemory>(gpu.memory, launch)) &&
             protocol::wait_num_blocks<GpuMemory>(gpu.memory, launch, &num_blocks);
    }
    num_blocks = ptx::shuffle(num_blocks, 0);
    schedule::TaskOrder order;
    order.num_blocks = num_blocks;
    order.n1 = gpu.memory.plan.n1;
    order.n2 = gpu.memory.plan.n2;
    order.lead = gpu.lead_blocks;
    order.shared_n1 = gpu.memory.shared_chunks;
    order.shared_blocks =
        gpu.memory.shared_chunks == 0 ? 0 : ceil_div(launch.num_tokens, gpu.memory.plan.row_block);
    SignalWarp<kMaxRows> warp{gpu, launch, shared, order, {}, {}};
    if (warp.agree(ok)) warp.run();
}

// The whole role for one CTA. Returns false if it left early.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ bool run_role2(const GpuLaunch& gpu, SharedStorage<kMaxRows>* shared) {
    const std::uint32_t thread = ptx::thread_idx();
    const std::uint32_t warp = thread / 32;
    if (thread == 0) init_barriers(shared);
    ptx::cta_barrier();
    Launch launch;
    const bool begun = protocol::begin_launch<GpuMemory>(gpu.memory, Role::kCompute, ptx::cta_idx(),
                                                         device::wait_limit(gpu), &launch);
    if (!begun) shared->abort = 1;
    ptx::cta_barrier();
    if (aborted(&shared->abort)) return false;
    if (warp < kMathWarps) {
        ptx::take_registers<kMathRegisters>();
        run_math<kK32>(gpu, launch, shared);
    } else {
        ptx::give_registers<kCopyRegisters>();
        if (warp == kSignalWarp) run_signals(gpu, launch, shared);
        if (warp == kSignalWarp + 1 && thread % 32 == 0) run_weight_warp<0, 2>(gpu, shared);
        if (warp == kSignalWarp + 2 && thread % 32 == 0) run_weight_warp<2, 1>(gpu, shared);
        if (warp == kSignalWarp + 3 && thread % 32 == 0) run_weight_warp<3, 1>(gpu, shared);
    }
    ptx::cta_barrier();
    return !aborted(&shared->abort);
}

}  // namespace gcmoe::cuda::gemm
