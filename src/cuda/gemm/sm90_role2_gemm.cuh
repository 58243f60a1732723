// Role 2 on Hopper: grouped GEMMs of the routed experts and of the shared one, tasks in ticket
// order.
//
// Runs on: the compute partition (as role 4: the communication partition, after role 1), one CTA of
// 640 threads per SM. Waits for: num_blocks, block table and l1_full_count (role 1);
// l2_empty_count, l2_full_mask, shared_ready (earlier tasks). Reads: ring x and activations with
// their origins, packed weights, own x for the shared expert. Writes: activations, peers' combine
// rows, shared rows, `done` of peers whose last row it was.
//
// A first-GEMM task is 128 columns: 4 row tiles of 64 packed rows, gate and up of a column in rows
// g and g + 8 of a slab. A second-GEMM task is 256 columns. N = live rows rounded up to 8.
// Registers: 96 at launch; math warps take 104, the other warps give down to 64. Bytes spilled: the
// table in sm90_role2_instance.cuh. Main loops of row-factor weights spill nothing (that of 56
// rows: two accesses a pair), and no A operand of a routed wgmma is reloaded (gate sass counts
// them); in the instances for 64 rows the loops of the shared expert and of chunk factors do spill.
// The rest are a few words where tasks start and end and in the other warps. ptxas serialises no
// wgmma (nvcc 13.0). Measured: docs/tuning.md. V4.1-Flash, 48 experts, 124 SMs, one H200,
// 2026-12-01: ends 250 us after role 1 began at 32 tokens, for 210 us of bytes; its first rows
// stand after 15.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_copy_warps.cuh"
#include "cuda/gemm/sm90_epilogue.cuh"
#include "cuda/gemm/sm90_math_steps.cuh"
#include "cuda/gemm/sm90_task_warp.cuh"
#include "protocol/barrier.hpp"
#include "protocol/generation.hpp"

namespace gcmoe::cuda::gemm {

// The CTA's pool is 640 x 96; more than it holds would wait for ever: 512 x 104 + 128 x 64 = 640 x
// 96.
inline constexpr int kMathRegisters = 104;
inline constexpr int kCopyRegisters = 64;
static_assert(sizeof(SharedStorage<64>) <= 227 * 1024, "an SM's shared memory for one CTA");
static_assert(offsetof(SharedStorage<64>, sums) % 16 == 0 &&
                  offsetof(SharedStorage<64>, row_factors) % 16 == 0,
              "epilogues read four floats at once");

// Forms of weights and activations that have a main loop of their own.
enum class LoopForm : std::uint8_t { kRowFactors, kChunkFactors, kFp8 };

// A thread's accumulators of the tokens that the warpgroup's sums have no room for yet.
template <std::uint32_t kMaxRows>
struct LaterSums {
    static constexpr std::uint32_t kTokens = kMaxRows - SharedStorage<kMaxRows>::kSumRows;
    float sum[kTokens == 0 ? 1 : kTokens / 2];
};

// One task's products for kN tokens, into the warpgroup's sums and `later`.
template <std::uint32_t kN, LoopForm kForm, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void multiply(const EpilogueTask<kMaxRows>& at,
                                         const MathRings<kMaxRows>& rings,
                                         LaterSums<kMaxRows>* later) {
    float sum[kN / 2];
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 2; ++i) sum[i] = 0.0F;
    if constexpr (kForm != LoopForm::kRowFactors || kK32) {
        const TaskWeights weights = task_weights(at.gpu, at.task, at.me);
        run_step_loop<kN, kForm == LoopForm::kFp8, kK32>(rings, weights, at.task.chunks, sum);
    } else if constexpr (kN <= kAheadTokens) {
        run_main_loop<kN>(rings, at.task.chunks, sum);
    } else {
        run_wide_loop<kN>(rings, at.task.chunks, sum);
    }
    constexpr std::uint32_t kNow = kN <= 32 ? kN : 32;
    stage_sums<kNow>(at, sum);
    if constexpr (LaterSums<kMaxRows>::kTokens != 0) {
#pragma unroll
        for (std::uint32_t i = 0; i < LaterSums<kMaxRows>::kTokens / 2; ++i) {
            later->sum[i] = kNow / 2 + i < kN / 2 ? sum[(kNow / 2 + i) % (kN / 2)] : 0.0F;
        }
    }
}

// The instance for the task's number of rows.
template <std::uint32_t kN, LoopForm kForm, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void multiply_rows(const EpilogueTask<kMaxRows>& at,
                                              const MathRings<kMaxRows>& rings,
                                              LaterSums<kMaxRows>* later) {
    if constexpr (kN > 8) {
        if (at.task.rows <= kN - 8) {
            multiply_rows<kN - 8, kForm, kK32>(at, rings, later);
            return;
        }
    }
    multiply<kN, kForm, kK32>(at, rings, later);
}

// One task of a warpgroup that has a tile.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_task(const EpilogueTask<kMaxRows>& at,
                                         const MathRings<kMaxRows>& rings) {
    // The rarer forms only exist for the largest N.
    LaterSums<kMaxRows> later;
    if (!at.routed()) {
        multiply<kMaxRows, LoopForm::kFp8, kK32>(at, rings, &later);
    } else if (at.task.matrix.chunk_factors != nullptr) {
        multiply<kMaxRows, LoopForm::kChunkFactors, kK32>(at, rings, &later);
    } else {
        multiply_rows<kMaxRows, LoopForm::kRowFactors, kK32>(at, rings, &later);
    }
    constexpr std::uint32_t kSumRows = SharedStorage<kMaxRows>::kSumRows;
#pragma unroll 1
    for (std::uint32_t begin = 0;; begin += kSumRows) {
        const std::uint32_t end = begin + kSumRows < at.task.rows ? begin + kSumRows : at.task.rows;
        at.warpgroup_barrier();
        if (is_first(at.task.kind)) {
            finish_first<kK32>(at, {begin, end});
        } else {
            finish_second(at, {begin, end});
        }
        at.warpgroup_barrier();  // the sums are read
        if (end == at.task.rows) break;
        if constexpr (LaterSums<kMaxRows>::kTokens != 0) {
            stage_sums<LaterSums<kMaxRows>::kTokens>(at, later.sum);
        }
    }
}

// A math thread's whole launch.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_math(const GpuLaunch& gpu, SharedStorage<kMaxRows>* shared) {
    const MathThread me = MathThread::here();
    auto cursors = MathCursors<kMaxRows>::over(shared, me.warpgroup);
    const MathRings<kMaxRows> rings{shared, me, &cursors};
    for (;;) {
        const std::uint32_t slot = cursors.slots.stage;
        wait_phase(&shared->task_full[slot], cursors.slots.phase);
        const GpuTask& task = shared->tasks[slot];
        if (task.is_end != 0) return;
        // Only a second GEMM's last task has warpgroups without a tile; its epilogue has no barrier
        // over warpgroups.
        if (row_tile_of(task, me.warpgroup) < task.row_tiles) {
            run_task<kK32>(EpilogueTask<kMaxRows>{gpu, shared, task, slot, cursors.slots.phase, me},
                           rings);
        } else {
            skip_tokens(rings, task.chunks);
        }
        ptx::warp_barrier();
        if (ptx::thread_idx() % 32 == 0) ptx::mbarrier_arrive(&shared->task_done[slot]);
        cursors.slots.advance();
    }
}

// The whole role for one CTA, unit `unit` of the role. Returns false if it left early.
template <bool kK32, std::uint32_t kMaxRows, class Gpu>
__device__ __forceinline__ bool run_role2(const Gpu& gpu, std::uint32_t unit,
                                          SharedStorage<kMaxRows>* shared) {
    const std::uint32_t thread = ptx::thread_idx();
    const std::uint32_t warp = thread / 32;
    if (thread == 0) init_barriers(shared);
    ptx::cta_barrier();
    Launch launch;
    const bool begun = protocol::begin_launch<GpuMemory>(
        gpu.memory, gpu.is_role4 != 0 ? Role::kShared : Role::kCompute, unit,
        device::wait_limit(gpu), &launch);
    if (!begun) shared->abort = 1;
    ptx::cta_barrier();
    if (aborted(&shared->abort)) return false;
    if (warp < kMathWarps) {
        ptx::take_registers<kMathRegisters>();
        run_math<kK32>(gpu, shared);
    } else {
        ptx::give_registers<kCopyRegisters>();
        if (warp == kTaskWarp) run_task_warp(gpu, launch, shared);
        if (warp == kTokenWarp) TokenWarp<kMaxRows, Gpu>{gpu, launch, shared, {}, {}}.run();
        if (warp == kWeightWarp) {
            WeightWarp<kMaxRows>{shared, ptx::evict_first_policy(), {}}.run();
        }
        if (warp == kFinishWarp) FinishWarp<kMaxRows, Gpu>{gpu, launch, shared}.run();
    }
    ptx::cta_barrier();
    if (aborted(&shared->abort)) return false;
    const bool leaves = gpu.memory.plan.combines_by_signals() && gpu.is_role4 == 0;
    if (leaves && thread == 0) protocol::leave_role2<GpuMemory>(gpu.memory);
    return true;
}

}  // namespace gcmoe::cuda::gemm
