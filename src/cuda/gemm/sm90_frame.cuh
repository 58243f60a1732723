// The frame of role 2 on Hopper: threads, shared memory, rings inside the CTA, the abort word.
//
// | warps  | job                                                                               |
// | 0..15  | four math warpgroups: each owns 64 weight rows of the task (one row tile)         |
// | 16     | tasks: takes tickets, hands tasks to all others                                   |
// | 17     | ring signals; token chunks, origins and row factors into shared memory            |
// | 18     | weight tiles: lane i feeds the ring of warpgroup i                                |
// | 19     | finish: signals other units what the math has read and stored                     |
//
// A stage is a pair of K128 chunks (the last one of a task may be one chunk). Rings: tokens, one
// for the CTA (all four warpgroups read a stage); weights, one per warpgroup; tasks, 3 slots. An
// mbarrier pair a stage; phases flip once per use.
//
// Abort: every wait for data also looks at the abort word and then returns at once, so that all
// threads come to the end of each task that was handed out. Only the end task, which the task warp
// hands out early after an abort, ends a warp: no warp leaves while another waits at a barrier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
#include "cuda/device/unit_log.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/sync.cuh"
#include "layout/weight_tile.hpp"
#include "protocol/wait.hpp"
#include "schedule/task_order.hpp"

namespace gcmoe::cuda::gemm {

using device::GpuExpert;
using device::GpuFp8Matrix;
using device::GpuLaunch;
using device::GpuMatrix;
using device::GpuMemory;
using protocol::Launch;

inline constexpr std::uint32_t kWarpgroups = 4;
inline constexpr std::uint32_t kMathThreads = kWarpgroups * 128;
inline constexpr std::uint32_t kMathWarps = kMathThreads / 32;
inline constexpr std::uint32_t kThreads = kMathThreads + 128;
inline constexpr std::uint32_t kTaskWarp = kMathWarps;
inline constexpr std::uint32_t kTokenWarp = kMathWarps + 1;
inline constexpr std::uint32_t kWeightWarp = kMathWarps + 2;
inline constexpr std::uint32_t kFinishWarp = kMathWarps + 3;
inline constexpr std::uint32_t kPair = 2;          // chunks of a stage
inline constexpr std::uint32_t kWeightStages = 3;  // 104 KB; more in flight makes the copies slower
inline constexpr std::uint32_t kTaskSlots = 3;     // one copied, one multiplied, one finished
// Pairs that the token warp still has to copy when it asks for the next ticket. Earlier would take
// tasks away from idle CTAs, later would expose the ticket's latency (about 2 us).
inline constexpr std::uint32_t kTicketAhead = 1;
inline constexpr std::uint32_t kMathBarrier = 1;       // named barrier of the math threads
inline constexpr std::uint32_t kWarpgroupBarrier = 2;  // and of warpgroup 0, 1, 2, 3
inline constexpr std::uint32_t kTileColumns = 256;     // packed rows of a task: 4 tiles of 64

// What the task warp tells the others about a task.
struct GpuTask {
    GpuMatrix matrix;  // of the routed expert; tiles null for the shared one
    schedule::TaskKind kind;
    std::uint32_t is_end;
    std::uint32_t block;      // of the launch, or row block of the shared expert
    std::uint32_t place;      // of the block in the ring
    std::uint32_t index;      // task in the block
    std::uint32_t rows;       // live rows
    std::uint32_t expert;     // local expert
    std::uint32_t chunks;     // K / 128
    std::uint32_t row_tiles;  // of the matrix; a tile past them: the warpgroup has nothing to do
};

// Of a task, by the token warp of a unit that keeps a log: when it began to wait for the task's
// rows, and when the last of those that it had to look for were there.
struct TaskTimes {
    std::uint64_t wait_ns;
    std::uint64_t ready_ns;
};

// Stages of the rings, each with its barriers beside its bytes: a math warp reaches all of a stage
// from one address, and adds to it once a stage (237 instructions a pair of 16 tokens, 262 with
// arrays of each). Weight stages lie on 128 bytes: bulk copies to other multiples of 16 cost 2 to
// 4 % of a launch.
template <std::uint32_t kMaxRows>
struct alignas(1024) TokenStage {
    std::uint8_t codes[kPair][kMaxRows * 128];  // groups of 8 swizzled rows, 1024 bytes each
    std::uint32_t scales[kPair][kMaxRows];
    std::uint64_t full;
    std::uint64_t empty;
};
template <std::uint32_t kMaxRows>
struct alignas(128) WeightStage {
    std::uint8_t tiles[kPair * layout::kFp4TileBytes];
    std::uint64_t full;
    std::uint64_t empty;
};

// Shared memory of a CTA; kMaxRows = rows of the largest block it can take.
template <std::uint32_t kMaxRows>
struct alignas(1024) SharedStorage {
    static constexpr std::uint32_t kTokenStages = kMaxRows <= 32 ? 6 : 4;
    static constexpr std::uint32_t kSumRows = kMaxRows <= 32 ? kMaxRows : 32;  // finished at once

    TokenStage<kMaxRows> tokens[kTokenStages];
    WeightStage<kMaxRows> weights[kWeightStages][kWarpgroups];
    float sums[kWarpgroups][kSumRows][64];  // swizzled, see EpilogueTask::sum
    layout::Origin origins[kTaskSlots][kMaxRows];
    float row_factors[kTaskSlots][kTileColumns];
    // Bits of non-negative floats; zero when a task is handed out. One for each 32 columns (UE8M0),
    // or the first for all 128 (FP32).
    std::uint32_t amax[kTaskSlots][4][kMaxRows];
    GpuTask tasks[kTaskSlots];
    std::uint64_t task_full[kTaskSlots];
    std::uint64_t task_done[kTaskSlots];  // copy warps are done with it; the math has stored
    std::uint64_t task_free[kTaskSlots];  // signalled as well
    std::uint64_t may_store[kTaskSlots];  // first GEMM: the place's last activations are read
    std::uint64_t ticket_wanted;
    std::uint32_t abort;
    TaskTimes times[kTaskSlots];
};

// The unit's log, of a launch that has them.
__device__ __forceinline__ trace::UnitLog* log_of(const device::TracedLaunch& gpu,
                                                  const Launch& launch) {
    return (gpu.is_role4 != 0 ? gpu.logs.shared : gpu.logs.compute) + launch.unit;
}

// A place in a ring of kStages and its phase.
template <std::uint32_t kStages>
struct RingCursor {
    std::uint32_t stage = 0;
    std::uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// The same as an address in shared memory, for loops that count instructions and registers. Places
// are kStride bytes apart; `end`, the address behind the ring, is the same for all threads, and no
// register of theirs holds it.
template <std::uint32_t kStages, std::uint32_t kStride>
struct StageCursor {
    std::uint32_t at = 0;
    std::uint32_t phase = 0;
    __device__ __forceinline__ void advance(std::uint32_t end) {
        at += kStride;
        if (at >= end) {
            at -= kStages * kStride;
            phase ^= 1;
        }
    }
};

// Until the barrier's phase with this parity has completed; false: somebody gave up.
__device__ __forceinline__ bool wait_phase(std::uint64_t* barrier, std::uint32_t parity,
                                           const std::uint32_t* abort) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
        if (*static_cast<const volatile std::uint32_t*>(abort) != 0) return false;
    }
    return true;
}

// The same by addresses in shared memory.
__device__ __forceinline__ void wait_phase_at(std::uint32_t barrier, std::uint32_t parity,
                                              std::uint32_t abort) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
        if (ptx::load_shared_word(abort) != 0) return;
    }
}

__device__ __forceinline__ bool aborted(const std::uint32_t* abort) {
    return *static_cast<const volatile std::uint32_t*>(abort) != 0;
}

// The same for waits that always end: see the file's head.
__device__ __forceinline__ void wait_phase(std::uint64_t* barrier, std::uint32_t parity) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
}

template <std::uint32_t kMaxRows>
__device__ __forceinline__ void init_barriers(SharedStorage<kMaxRows>* shared) {
    for (std::uint32_t i = 0; i < SharedStorage<kMaxRows>::kTokenStages; ++i) {
        ptx::mbarrier_init(&shared->tokens[i].full, 1);
        ptx::mbarrier_init(&shared->tokens[i].empty, kMathWarps);
    }
    for (std::uint32_t g = 0; g < kWarpgroups; ++g) {
        for (std::uint32_t i = 0; i < kWeightStages; ++i) {
            ptx::mbarrier_init(&shared->weights[i][g].full, 1);
            ptx::mbarrier_init(&shared->weights[i][g].empty, 4);
        }
    }
    for (std::uint32_t i = 0; i < kTaskSlots; ++i) {
        ptx::mbarrier_init(&shared->task_full[i], 1);
        ptx::mbarrier_init(&shared->task_done[i], kMathWarps + 2);
        ptx::mbarrier_init(&shared->task_free[i], 1);
        ptx::mbarrier_init(&shared->may_store[i], 1);
    }
    ptx::mbarrier_init(&shared->ticket_wanted, 1);
    shared->abort = 0;
    ptx::mbarrier_init_fence();
    ptx::fence_async_proxy_shared();
}

// Columns of K of a task, in chunks of 128.
__device__ __forceinline__ std::uint32_t chunks_of(const layout::RankMemory& memory,
                                                   schedule::TaskKind kind) {
    switch (kind) {
        case schedule::TaskKind::kFirstGemm:
        case schedule::TaskKind::kSharedFirst:
            return memory.hidden_chunks;
        case schedule::TaskKind::kSecondGemm:
            return memory.inter_chunks;
        case schedule::TaskKind::kSharedSecond:
            return memory.shared_chunks;
    }
    return 0;
}

__device__ __forceinline__ bool is_shared(schedule::TaskKind kind) {
    return kind == schedule::TaskKind::kSharedFirst || kind == schedule::TaskKind::kSharedSecond;
}

__device__ __forceinline__ bool is_first(schedule::TaskKind kind) {
    return kind == schedule::TaskKind::kFirstGemm || kind == schedule::TaskKind::kSharedFirst;
}

// Row tile of warpgroup `warpgroup` in a task; past the matrix's end: the warpgroup has nothing to
// do.
__device__ __forceinline__ std::uint32_t row_tile_of(const GpuTask& task, std::uint32_t warpgroup) {
    return task.index * kWarpgroups + warpgroup;
}
__device__ __forceinline__ std::uint32_t row_tiles(const layout::RankMemory& memory,
                                                   schedule::TaskKind kind) {
    switch (kind) {
        case schedule::TaskKind::kFirstGemm:
            return memory.inter_chunks * 4;
        case schedule::TaskKind::kSharedFirst:
            return memory.shared_chunks * 4;
        case schedule::TaskKind::kSecondGemm:
        case schedule::TaskKind::kSharedSecond:
            return memory.hidden_chunks * 2;
    }
    return 0;
}

}  // namespace gcmoe::cuda::gemm
