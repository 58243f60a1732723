// Role 2's main loops with nothing around them: its frame of 640 threads and its rings, fed with
// the tokens and weights of tasks that are dealt out beforehand.
//
// Runs on: any SMs, one CTA each. Waits for: nothing outside the CTA. Reads: tiles, tokens. Writes:
// sums. Registers: as role 2's (sm90_role2_gemm.cuh); one word is spilled at 48 rows.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_role2_gemm.cuh"
#include "cuda/measure/loop_geometry.hpp"

namespace gcmoe::cuda::measure {

// What a launch reads and writes.
struct LoopWork {
    LoopGeometry geometry;
    const std::uint8_t* tiles;
    const std::uint8_t* codes;
    const float* scales;
    float* sums;
};

// Role 2's instance that takes blocks of kN rows.
template <std::uint32_t kN>
inline constexpr std::uint32_t kBlockRows = kN <= 16   ? 16
                                            : kN <= 32 ? 32
                                                       : 64;
template <std::uint32_t kN>
using LoopStorage = gemm::SharedStorage<kBlockRows<kN>>;

// The tasks of this CTA, one after the other: body(task, round).
template <class Body>
__device__ __forceinline__ void for_own_tasks(const LoopGeometry& geometry, const Body& body) {
    std::uint32_t round = 0;
    const std::uint32_t stride = ptx::num_ctas();
    for (std::uint32_t task = ptx::cta_idx(); task < geometry.num_tasks(); task += stride) {
        body(geometry.task(task), round++);
    }
}

// One math thread: all tasks' sums, as they leave the main loop, to device memory.
template <std::uint32_t kN>
__device__ __forceinline__ void multiply_tasks(const LoopWork& work, LoopStorage<kN>* shared) {
    const gemm::MathThread me = gemm::MathThread::here();
    auto cursors = gemm::MathCursors<kBlockRows<kN>>::over(shared, me.warpgroup);
    const gemm::MathRings<kBlockRows<kN>> rings{shared, me, &cursors};
    for_own_tasks(work.geometry, [&](const LoopTask& task, std::uint32_t round) {
        float sum[kN / 2];
#pragma unroll
        for (std::uint32_t i = 0; i < kN / 2; ++i) sum[i] = 0.0F;
        if constexpr (kN <= gemm::kAheadTokens) {
            gemm::run_main_loop<kN>(rings, task.chunks, sum);
        } else {
            gemm::run_wide_loop<kN>(rings, task.chunks, sum);
        }
        float* to = work.sums + work.geometry.first_sum(ptx::cta_idx(), round) + 64 * me.warpgroup +
                    2 * me.q * kLoopTaskRows;
#pragma unroll
        for (std::uint32_t i = 0; i < kN / 2; ++i) {
            to[(8 * (i / 4) + i % 2) * kLoopTaskRows + me.row(i / 2 % 2)] = sum[i];
        }
    });
}

// One lane: the tasks' pairs of chunks, as TokenWarp::feed_ring copies them.
template <std::uint32_t kN>
__device__ __forceinline__ void feed_tokens(const LoopWork& work, LoopStorage<kN>* shared) {
    gemm::RingCursor<LoopStorage<kN>::kTokenStages> at;
    for_own_tasks(work.geometry, [&](const LoopTask& task, std::uint32_t) {
        const std::uint8_t* codes = work.codes + std::uint64_t{task.token_chunk} * (kN * 128);
        const float* scales = work.scales + std::uint64_t{task.token_chunk} * kN;
        for (std::uint32_t chunk = 0; chunk < task.chunks; chunk += gemm::kPair) {
            auto& stage = shared->tokens[at.stage];
            const std::uint32_t left = task.chunks - chunk;
            const std::uint32_t count = left < gemm::kPair ? left : gemm::kPair;
            gemm::wait_phase(&stage.empty, at.phase ^ 1);
            ptx::mbarrier_arrive_expect(&stage.full, count * kN * 132);
#pragma unroll
            for (std::uint32_t i = 0; i < gemm::kPair; ++i) {
                if (i >= count) break;
                ptx::bulk_load(stage.codes[i], codes, kN * 128, &stage.full);
                ptx::bulk_load(stage.scales[i], scales, kN * 4, &stage.full);
                codes += kN * 128;
                scales += kN;
            }
            at.advance();
        }
    });
}

// The weight warp: its copies are role 2's.
template <std::uint32_t kN>
__device__ __forceinline__ void feed_weights(const LoopWork& work, LoopStorage<kN>* shared) {
    const std::uint32_t group = ptx::thread_idx() % 32;
    gemm::WeightWarp<kBlockRows<kN>> warp{shared, ptx::evict_first_policy(), {}};
    for_own_tasks(work.geometry, [&](const LoopTask& own, std::uint32_t) {
        gemm::GpuTask task{};
        task.matrix.tiles = work.tiles + std::uint64_t{own.first_tile} * layout::kFp4TileBytes;
        task.index = own.index;
        task.chunks = own.chunks;
        task.row_tiles = own.row_tiles;
        if (group < gemm::kWarpgroups) warp.load_task(task, group);
        ptx::warp_barrier();
    });
}

// A whole launch for one CTA.
template <std::uint32_t kN>
__device__ __forceinline__ void run_loop(const LoopWork& work, LoopStorage<kN>* shared) {
    if (ptx::thread_idx() == 0) gemm::init_barriers(shared);
    ptx::cta_barrier();
    const std::uint32_t warp = ptx::thread_idx() / 32;
    if (warp < gemm::kMathWarps) {
        ptx::take_registers<gemm::kMathRegisters>();
        multiply_tasks<kN>(work, shared);
    } else {
        ptx::give_registers<gemm::kCopyRegisters>();
        if (warp == gemm::kTokenWarp && ptx::elect_one()) feed_tokens<kN>(work, shared);
        if (warp == gemm::kWeightWarp) feed_weights<kN>(work, shared);
    }
}

}  // namespace gcmoe::cuda::measure
