// Role 1 on the GPU: routing accounts, all-to-all pull of token rows into the ring.
//
// Runs on: the communication partition, one CTA per SM. Waits for: count words of every source
// (system scope), l1_empty_count (role 2). No barrier over the grid: each CTA reads all count words
// itself. Reads: own topk, peers' x, x_scale, topk_weight, received counts and lists. Writes:
// peers' recv_count and recv_slot, block table, num_blocks, rows_left targets, ring x, scales,
// origins, `done` of peers without rows.
//
// | threads        | job                                                                  |
// | CTA 0, all     | count slots per expert, write slot lists to owners, count words        |
// | all CTAs, all  | wait for every source's count words, locate entries                   |
// | CTA 0, 0       | block table, targets, num_blocks, `done` without rows                 |
// | all CTAs, warp | pull rows: warp i of all warps takes rows i, i + warps, ..            |
//
// Shared memory: (num_experts + 2 * num_ranks * experts_per_rank + experts_per_rank + 4) words.
// Registers: at most 64 of 256 threads.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/sync.cuh"
#include "protocol/barrier.hpp"
#include "protocol/done.hpp"
#include "protocol/generation.hpp"
#include "protocol/receive_counters.hpp"
#include "protocol/ring.hpp"
#include "schedule/round_robin.hpp"

namespace gcmoe::cuda::dispatch {

using device::GpuLaunch;
using device::GpuMemory;
using protocol::Launch;

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / 32;

// The CTA's accounts in shared memory.
struct Accounts {
    std::uint32_t* list_next;    // (num_experts) next free entry of the expert's list; CTA 0 only
    std::uint32_t* counts;       // (num_ranks, experts_per_rank) this launch's counts
    std::uint32_t* offsets;      // (num_ranks, experts_per_rank) start in the source's list
    std::uint32_t* first_row;    // (experts_per_rank + 1) rows of the experts before
    std::uint32_t* first_block;  // (experts_per_rank + 1) blocks of the experts before
    std::uint32_t* failed;       // 1: somebody gave up, all leave
};

GCMOE_HD inline std::uint32_t account_words(std::uint32_t num_experts, std::uint32_t num_ranks,
                                            std::uint32_t per_rank) {
    return num_experts + 2 * num_ranks * per_rank + 2 * (per_rank + 1) + 1;
}

__device__ __forceinline__ Accounts place_accounts(std::uint32_t* shared, const GpuLaunch& gpu) {
    const std::uint32_t per_rank = gpu.memory.heap.experts_per_rank;
    const std::uint32_t cells = gpu.memory.heap.num_ranks * per_rank;
    Accounts accounts;
    accounts.list_next = shared;
    accounts.counts = accounts.list_next + gpu.num_experts;
    accounts.offsets = accounts.counts + cells;
    accounts.first_row = accounts.offsets + cells;
    accounts.first_block = accounts.first_row + per_rank + 1;
    accounts.failed = accounts.first_block + per_rank + 1;
    return accounts;
}

// The expert of a slot, or -1 if it is unused or its id is past the last expert.
__device__ __forceinline__ std::int64_t used_expert(const GpuLaunch& gpu, std::uint64_t slot) {
    const layout::RankMemory& memory = gpu.memory;
    const std::int64_t id = memory.heap.expert_id(memory.own_heap(), slot);
    if (id < static_cast<std::int64_t>(gpu.num_experts)) return id < 0 ? -1 : id;
    return -1;
}

// CTA 0, thread 0: the launch's first id past the last expert, for the host.
__device__ __forceinline__ void note_bad_index(const GpuLaunch& gpu, const Launch& launch,
                                               std::uint64_t slot) {
    layout::StateWords& state = *gpu.memory.state();
    if (state.bad_index_claimed != 0) return;
    state.bad_index_claimed = std::uint64_t{launch.generation} + 1;
    state.bad_index_slot = slot;
    state.bad_index_id = gpu.memory.heap.expert_id(gpu.memory.own_heap(), slot);
}

// CTA 0, warp 0: slots in order, 32 at a time; a lane's place in its expert's list is the expert's
// next free entry plus the lanes before it with the same expert. First pass counts, second writes
// lists.
__device__ __forceinline__ void walk_slots(const GpuLaunch& gpu, const Launch& launch,
                                           const Accounts& accounts, bool write_lists) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint64_t num_slots = std::uint64_t{launch.num_tokens} * memory.heap.topk;
    for (std::uint64_t first = 0; first < num_slots; first += 32) {
        const std::uint64_t slot = first + lane;
        const std::int64_t expert = slot < num_slots ? used_expert(gpu, slot) : -1;
        const bool bad =
            slot < num_slots && expert < 0 && memory.heap.expert_id(memory.own_heap(), slot) >= 0;
        const std::uint32_t bad_lanes = ptx::ballot(bad);
        if (!write_lists && bad_lanes != 0 && lane == ptx::first_bit(bad_lanes)) {
            note_bad_index(gpu, launch, slot);
        }
        const std::uint32_t same = ptx::match_any(static_cast<std::uint32_t>(expert));
        const std::uint32_t before = ptx::count_bits(same & ((1U << lane) - 1));
        if (expert >= 0) {
            const auto e = static_cast<std::uint32_t>(expert);
            const std::uint32_t entry = accounts.list_next[e] + before;
            if (write_lists) {
                protocol::slot_list<GpuMemory>(memory, e / memory.heap.experts_per_rank,
                                               memory.rank(), launch.generation)[entry] =
                    static_cast<std::uint32_t>(slot);
            }
        }
        ptx::warp_barrier();
        if (expert >= 0 && before == 0) accounts.list_next[expert] += ptx::count_bits(same);
        ptx::warp_barrier();
    }
}

// CTA 0: counts per expert, slot lists to the owners, then the count words (R2).
__device__ __forceinline__ void publish_routing(const GpuLaunch& gpu, const Launch& launch,
                                                const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t thread = ptx::thread_idx();
    for (std::uint32_t e = thread; e < gpu.num_experts; e += kThreads) accounts.list_next[e] = 0;
    ptx::cta_barrier();
    if (thread < 32) walk_slots(gpu, launch, accounts, false);
    ptx::cta_barrier();
    // Counts wait in `counts` while list_next becomes the lists' starts; num_experts = ranks *
    // per_rank.
    for (std::uint32_t e = thread; e < gpu.num_experts; e += kThreads) {
        accounts.counts[e] = accounts.list_next[e];
    }
    ptx::cta_barrier();
    for (std::uint32_t owner = thread; owner < memory.heap.num_ranks; owner += kThreads) {
        std::uint32_t next = 0;
        for (std::uint32_t e = owner * per_rank; e < (owner + 1) * per_rank; ++e) {
            accounts.list_next[e] = next;
            next += accounts.counts[e];
        }
    }
    ptx::cta_barrier();
    if (thread < 32) walk_slots(gpu, launch, accounts, true);
    ptx::cta_barrier();
    for (std::uint32_t i = thread; i < gpu.num_experts; i += kThreads) {
        const std::uint32_t e = (i + memory.rank() * per_rank) % gpu.num_experts;
        protocol::publish_count<GpuMemory>(memory, launch, e / per_rank, e % per_rank,
                                           accounts.counts[e]);
    }
    ptx::cta_barrier();  // counts are overwritten by what is received
}

// All threads: every source's count words, then entries, rows and blocks before each expert.
__device__ __forceinline__ bool receive_routing(const GpuLaunch& gpu, const Launch& launch,
                                                const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t cells = memory.heap.num_ranks * per_rank;
    const std::uint32_t thread = ptx::thread_idx();
    for (std::uint32_t i = thread; i < cells; i += kThreads) {
        if (!protocol::wait_count<GpuMemory>(memory, launch, i / per_rank, i % per_rank,
                                             &accounts.counts[i])) {
            *accounts.failed = 1;
            break;
        }
    }
    ptx::cta_barrier();
    if (*accounts.failed != 0) return false;
    for (std::uint32_t s = thread; s < memory.heap.num_ranks; s += kThreads) {
        if (!protocol::locate_entries<GpuMemory>(memory, launch, s, accounts.counts + s * per_rank,
                                                 accounts.offsets + s * per_rank)) {
            *accounts.failed = 1;
        }
    }
    for (std::uint32_t e = thread; e < per_rank; e += kThreads) {
        std::uint32_t rows = 0;
        for (std::uint32_t s = 0; s < memory.heap.num_ranks; ++s)
            rows += accounts.counts[s * per_rank + e];
        accounts.first_row[e] = rows;
    }
    ptx::cta_barrier();
    if (thread == 0) {
        std::uint32_t row = 0;
        std::uint32_t block = 0;
        for (std::uint32_t e = 0; e <= per_rank; ++e) {
            const std::uint32_t rows = e < per_rank ? accounts.first_row[e] : 0;
            accounts.first_row[e] = row;
            accounts.first_block[e] = block;
            row += rows;
            block += ceil_div(rows, memory.plan.row_block);
        }
    }
    ptx::cta_barrier();
    return *accounts.failed == 0;
}

// CTA 0: the tables that role 2 and the host read; the order of publish_num_blocks is R7.
__device__ __forceinline__ void publish_blocks(const GpuLaunch& gpu, const Launch& launch,
                                               const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t thread = ptx::thread_idx();
    auto* statistics = memory.at<std::uint64_t>(memory.local.statistics);
    for (std::uint32_t e = thread; e < per_rank; e += kThreads) {
        const std::uint32_t rows = accounts.first_row[e + 1] - accounts.first_row[e];
        statistics[e] += rows;
        std::uint32_t index = accounts.first_block[e];
        for (std::uint32_t first = 0; first < rows; first += memory.plan.row_block) {
            const std::uint32_t left = rows - first;
            const protocol::Block block = protocol::block_at(memory, launch, index++);
            protocol::publish_block<GpuMemory>(
                memory, launch, block, left < memory.plan.row_block ? left : memory.plan.row_block,
                e);
        }
    }
    for (std::uint32_t s = thread; s < memory.heap.num_ranks; s += kThreads) {
        std::uint32_t rows = 0;
        for (std::uint32_t e = 0; e < per_rank; ++e) {
            rows += accounts.counts[s * per_rank + e];
            memory.source_count(s)[e] = accounts.counts[s * per_rank + e];
            memory.source_offset(s)[e] = accounts.offsets[s * per_rank + e];
        }
        protocol::set_rows_target(memory, s, rows);
        if (rows == 0) protocol::publish_done_without_rows<GpuMemory>(memory, launch, s);
    }
    ptx::cta_barrier();
    if (thread != 0) return;
    memory.state()->rows_received += accounts.first_row[per_rank];
    memory.state()->blocks_received += accounts.first_block[per_rank];
    protocol::publish_num_blocks<GpuMemory>(memory, launch, accounts.first_block[per_rank]);
}

// The expert of row `row` of this launch's rows: the last one whose first row is not behind it.
__device__ __forceinline__ std::uint32_t expert_of_row(const Accounts& accounts,
                                                       std::uint32_t per_rank, std::uint32_t row) {
    std::uint32_t low = 0;
    std::uint32_t high = per_rank;
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        if (accounts.first_row[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// One warp: copies one row of a peer into the ring, in the weights' K order and swizzled.
__device__ __forceinline__ void copy_row(const GpuLaunch& gpu, std::uint32_t source,
                                         std::uint32_t slot, std::uint32_t place,
                                         std::uint32_t row) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    std::uint8_t* heap = memory.peers.heap(static_cast<int>(source));
    const std::uint32_t token = slot / memory.heap.topk;
    const auto* from = reinterpret_cast<const std::uint32_t*>(memory.heap.x_row(heap, token));
    const std::uint32_t* scales = memory.heap.x_scale_row(heap, token);
    const layout::ChunkedRows ring = memory.ring_x();
    for (std::uint32_t chunk = 0; chunk < memory.hidden_chunks; ++chunk) {
        const int byte = layout::k_byte_position(gpu.order, static_cast<int>(4 * lane));
        const int to = layout::ring_byte_offset(static_cast<int>(row), byte);
        *reinterpret_cast<std::uint32_t*>(ring.chunk(place, chunk) + to) = from[32 * chunk + lane];
    }
    for (std::uint32_t chunk = lane; chunk < memory.hidden_chunks; chunk += 32) {
        ring.scale(place, chunk)[row] = scales[chunk];
    }
    if (lane == 0) {
        memory.ring_origins(place)[row] =
            layout::Origin{source, slot, memory.heap.weight(heap)[slot], 0};
    }
}

// One warp: pulls row `row` of the launch. Writers fence for the copy engine, which reads the ring;
// then one lane counts the row (R11).
__device__ __forceinline__ bool pull_row(const GpuLaunch& gpu, const Launch& launch,
                                         const Accounts& accounts, std::uint32_t row) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t expert = expert_of_row(accounts, per_rank, row);
    const std::uint32_t position = row - accounts.first_row[expert];
    const std::uint32_t rows = accounts.first_row[expert + 1] - accounts.first_row[expert];
    const std::uint32_t row_block = memory.plan.row_block;
    const protocol::Block block =
        protocol::block_at(memory, launch, accounts.first_block[expert] + position / row_block);
    const auto counts = [&](std::uint32_t source) {
        return accounts.counts[source * per_rank + expert];
    };
    const schedule::SourceRow from = schedule::row_at(counts, memory.heap.num_ranks, position);
    std::uint32_t slot = 0;
    bool ready = true;
    if (lane == 0) {
        const std::uint64_t entry = accounts.offsets[from.source * per_rank + expert] + from.index;
        ready = protocol::received_slot<GpuMemory>(memory, launch, from.source, entry, &slot) &&
                protocol::TokenRing<GpuMemory>::producer_acquire(memory, launch, block);
    }
    if (!ptx::shuffle(static_cast<std::uint32_t>(ready), 0)) return false;
    slot = ptx::shuffle(slot, 0);
    const std::uint32_t row_in_block = position % row_block;
    copy_row(gpu, from.source, slot, block.place, row_in_block);
    ptx::fence_async_proxy();
    ptx::warp_barrier();
    if (lane == 0) {
        const std::uint32_t padding = position + 1 == rows ? row_block - 1 - row_in_block : 0;
        protocol::TokenRing<GpuMemory>::producer_commit(memory, block, 1 + padding);
    }
    return true;
}

// All warps of all CTAs: the launch's rows in order, dealt out one by one.
__device__ __forceinline__ bool pull_rows(const GpuLaunch& gpu, const Launch& launch,
                                          const Accounts& accounts) {
    const std::uint32_t warp = ptx::thread_idx() / 32;
    const std::uint32_t stride = ptx::num_ctas() * kWarps;
    const std::uint32_t rows = accounts.first_row[gpu.memory.heap.experts_per_rank];
    // Neighbouring rows go to different CTAs: a block is pulled by all SMs of the partition at
    // once.
    for (std::uint32_t row = warp * ptx::num_ctas() + ptx::cta_idx(); row < rows; row += stride) {
        if (!pull_row(gpu, launch, accounts, row)) return false;
    }
    return true;
}

// The whole role for one CTA. Returns false if it left early.
__device__ __forceinline__ bool run_role1(const GpuLaunch& gpu, std::uint32_t* shared) {
    const std::uint32_t thread = ptx::thread_idx();
    const std::uint32_t unit = ptx::cta_idx();
    const Accounts accounts = place_accounts(shared, gpu);
    Launch launch;
    if (thread == 0) *accounts.failed = 0;
    ptx::cta_barrier();
    const bool begun = protocol::begin_launch<GpuMemory>(gpu.memory, Role::kDispatch, unit,
                                                         device::wait_limit(gpu), &launch);
    if (!begun) *accounts.failed = 1;
    ptx::cta_barrier();
    if (*accounts.failed != 0) return false;
    const bool publish = gpu.dispatch_step != device::DispatchStep::kPull;
    if (unit == 0 && publish) publish_routing(gpu, launch, accounts);
    if (gpu.dispatch_step == device::DispatchStep::kPublish) return true;
    if (!receive_routing(gpu, launch, accounts)) return false;
    if (unit == 0) publish_blocks(gpu, launch, accounts);
    device::GpuTimes& times = gpu.dispatch_times[unit];
    if (thread == 0) times.first_work_ns = ptx::global_timer_ns();
    if (!pull_rows(gpu, launch, accounts)) *accounts.failed = 1;
    ptx::cta_barrier();
    if (*accounts.failed != 0) return false;
    if (thread == 0) {
        times.last_work_ns = ptx::global_timer_ns();
        protocol::leave_role1<GpuMemory>(gpu.memory);
    }
    return true;
}

}  // namespace gcmoe::cuda::dispatch
