// Role 1's first act: it asks the L2 for what the launch's first microseconds will read.
//
// The weights of other layers have passed through the L2 since the last launch; each of these words
// is a miss of about 1 us then, and most are read one behind the other. Nothing here is waited for,
// and no value is used: a range that is not needed costs its bytes and nothing else.
#pragma once

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::dispatch {

using device::GpuLaunch;

inline constexpr std::uint32_t kMostWarmBytes = 16 * 1024;  // of one table
inline constexpr std::uint32_t kMostWarmTokens = 1024;      // 8 MB of rows at most

// One thread. The range is widened to whole 16 bytes, which never leaves its 128-byte line.
__device__ __forceinline__ void warm(const void* from, std::uint64_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{15};
    const std::uint64_t end = reinterpret_cast<std::uintptr_t>(from) + bytes;
    const std::uint64_t wanted = (end - first + 15) & ~std::uint64_t{15};
    ptx::bulk_prefetch(
        reinterpret_cast<const void*>(first),
        static_cast<std::uint32_t>(wanted < kMostWarmBytes ? wanted : kMostWarmBytes));
}

// One warp, before the launch is known: signals and tables, one a lane.
__device__ __forceinline__ void warm_tables(const GpuLaunch& gpu) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint64_t experts = memory.heap.experts_per_rank;
    const std::uint64_t ranks = memory.heap.num_ranks;
    const std::uint64_t places = memory.plan.ring_blocks;
    switch (ptx::thread_idx() % 32) {
        case 0:
            return warm(memory.own_heap() + memory.heap.recv_count, 16 * ranks * experts);
        case 1:
            return warm(memory.l1_empty_count(0), 4 * places);
        case 2:
            return warm(memory.l1_full_count(0), 4 * places);
        case 3:
            return warm(memory.l2_empty_count(0), 4 * places);
        case 4:
            return warm(memory.l2_full_mask(0), 8 * places);
        case 5:
            return warm(memory.block_table(), 8 * std::uint64_t{memory.plan.table_blocks});
        case 6:
            return warm(memory.num_blocks(), 8);
        case 7:
            return warm(memory.rows_left(), 4 * ranks);
        case 8:
            return warm(memory.rows_left_target(), 4 * ranks);
        case 9:
            return warm(memory.at<std::uint64_t>(memory.local.statistics), 8 * experts);
        case 10:
            return warm(gpu.experts, sizeof(device::GpuExpert) * experts);
        case 11:
            return warm(memory.own_heap() + memory.heap.done, 8 * ranks);
        default:
            return;
    }
}

// One warp of every CTA: the rank's own tokens, a lane a token. Peers pull them.
__device__ __forceinline__ void warm_tokens(const GpuLaunch& gpu, const Unit& unit,
                                            std::uint32_t num_tokens) {
    const layout::SymmetricHeap& heap = gpu.memory.heap;
    std::uint8_t* own = gpu.memory.own_heap();
    const std::uint32_t tokens = num_tokens < kMostWarmTokens ? num_tokens : kMostWarmTokens;
    const std::uint32_t stride = 32 * unit.num_units;
    for (std::uint32_t token = ptx::thread_idx() % 32 * unit.num_units + unit.idx; token < tokens;
         token += stride) {
        warm(heap.x_row(own, token), gpu.hidden);
        warm(heap.x_scale_row(own, token), 4 * std::uint64_t{gpu.memory.hidden_chunks});
        warm(heap.weight(own) + std::uint64_t{token} * heap.topk, 4 * std::uint64_t{heap.topk});
    }
}

}  // namespace gcmoe::cuda::dispatch
