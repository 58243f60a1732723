// What a launch reads first, listed on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/check.hpp"
#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::device {

inline constexpr std::uint64_t kMostWarmBytes = 16 * 1024;  // of one range

// launch->memory, with its plan, and launch->experts are set.
inline void list_warm_ranges(GpuLaunch* launch) {
    const layout::RankMemory& memory = launch->memory;
    const std::uint64_t experts = memory.heap.experts_per_rank;
    const std::uint64_t ranks = memory.heap.num_ranks;
    const std::uint64_t places = memory.plan.ring_blocks;
    WarmRange* next = launch->warm_ranges;
    const auto add = [&](const void* from, std::uint64_t bytes) {
        GCMOE_CHECK(next != std::end(launch->warm_ranges), kWarmRanges);
        *next++ = {from, static_cast<std::uint32_t>(std::min(bytes, kMostWarmBytes))};
    };
    const std::uint8_t* heap = memory.own_heap();
    add(heap + memory.heap.topk_idx, memory.heap.max_slots() * memory.heap.index_bytes);
    add(heap + memory.heap.recv_count, 16 * ranks * experts);
    add(memory.l1_empty_count(0), 4 * places);
    add(memory.l1_full_count(0), 4 * places);
    add(memory.l2_empty_count(0), 4 * places);
    add(memory.l2_full_mask(0), 8 * places);
    add(memory.block_table(), 8 * std::uint64_t{memory.plan.table_blocks});
    add(memory.num_blocks(), 8);
    add(memory.rows_left(), 4 * ranks);
    add(memory.rows_left_target(), 4 * ranks);
    add(memory.at<std::uint64_t>(memory.local.statistics), 8 * experts);
    add(launch->experts, sizeof(GpuExpert) * experts);
    add(heap + memory.heap.done, 8 * ranks);
}

}  // namespace gcmoe::cuda::device
