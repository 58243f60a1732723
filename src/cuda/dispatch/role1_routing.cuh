// Role 1's routing: how many rows of which expert go where, published to all ranks and received
// from them.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "cuda/device/gpu_memory.cuh"
#include "cuda/device/unit.cuh"
#include "cuda/device/unit_log.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/sync.cuh"
#include "protocol/done.hpp"
#include "protocol/receive_counters.hpp"
#include "protocol/ring.hpp"

namespace gcmoe::cuda::dispatch {

using device::GpuLaunch;
using device::GpuMemory;
using device::Unit;
using protocol::Launch;

inline constexpr std::uint32_t kThreads = 512;
inline constexpr std::uint32_t kWarps = kThreads / 32;
static_assert(kWarps == device::kDispatchLogs);
// Among the role's threads: a CTA may have more.
__device__ __forceinline__ void role_barrier() {
    ptx::named_barrier(device::kRoleBarrier, kThreads);
}
// Rows on their way: a warp stores one while the next one is being copied.
inline constexpr std::uint32_t kRowsAhead = 2;
inline constexpr std::uint32_t kRowPiece = 6144;  // bytes at once: a row of hidden = 6144
struct alignas(128) RowBuffers {
    std::uint64_t arrived[kWarps][kRowsAhead];  // mbarriers
    Launch launch;                              // the CTA's
    alignas(128) std::uint8_t codes[kWarps][kRowsAhead][kRowPiece];
};

// The CTA's accounts in shared memory: the lists in the place of the row buffers' codes, which
// come after them, the rest behind.
struct Accounts {
    std::uint32_t* list_next;  // (num_experts, kWarps), rows of kListStride: the warp's next entry
                               // of the expert's list; CTA 0 only
    std::uint32_t* bad_slot;   // (kWarps) first slot with a bad id, or kNoSlot; CTA 0 only
    std::uint32_t* counts;     // (num_ranks, experts_per_rank) this launch's counts
    std::uint32_t* offsets;    // (num_ranks, experts_per_rank) start in the source's list
    std::uint32_t* source_rows;  // (num_ranks) rows of this launch
    std::uint32_t* first_row;    // (experts_per_rank + 1) rows of the experts before
    std::uint32_t* first_block;  // (experts_per_rank + 1) blocks of the experts before
    std::uint32_t* failed;       // 1: somebody gave up, all leave
};
inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFFU;
inline constexpr std::uint32_t kListStride = kWarps + 1;  // neighbouring experts: other banks

// Bytes of shared memory before those accounts that stay.
GCMOE_HD inline std::size_t bytes_before_accounts(std::uint32_t num_experts) {
    const std::size_t list_bytes = 4 * (std::size_t{kListStride} * num_experts + kWarps);
    const std::size_t codes_bytes = sizeof(RowBuffers::codes);
    return offsetof(RowBuffers, codes) + (list_bytes > codes_bytes ? list_bytes : codes_bytes);
}
GCMOE_HD inline std::size_t shared_bytes(std::uint32_t num_experts, std::uint32_t num_ranks) {
    const std::size_t per_rank = num_experts / num_ranks;
    const std::size_t words = num_ranks * (2 * per_rank + 1) + 2 * (per_rank + 1) + 1;
    return bytes_before_accounts(num_experts) + 4 * words;
}

__device__ __forceinline__ Accounts place_accounts(std::uint8_t* shared, const GpuLaunch& gpu) {
    const std::uint32_t per_rank = gpu.memory.heap.experts_per_rank;
    const std::uint32_t cells = gpu.memory.heap.num_ranks * per_rank;
    Accounts accounts;
    accounts.list_next = reinterpret_cast<std::uint32_t*>(shared + offsetof(RowBuffers, codes));
    accounts.bad_slot = accounts.list_next + kListStride * gpu.num_experts;
    accounts.counts =
        reinterpret_cast<std::uint32_t*>(shared + bytes_before_accounts(gpu.num_experts));
    accounts.offsets = accounts.counts + cells;
    accounts.source_rows = accounts.offsets + cells;
    accounts.first_row = accounts.source_rows + gpu.memory.heap.num_ranks;
    accounts.first_block = accounts.first_row + per_rank + 1;
    accounts.failed = accounts.first_block + per_rank + 1;
    return accounts;
}

// Thread 0 of a CTA: a step of the role has ended.
template <class Gpu>
__device__ __forceinline__ void log_step(const Gpu& gpu, const Launch& launch,
                                         const device::LogSite& site) {
    if constexpr (device::kKeepsLogs<Gpu>) {
        if (ptx::thread_idx() != 0) return;
        device::log_step(&gpu.logs.dispatch[launch.unit * device::kDispatchLogs], launch, site,
                         gpu.dispatch_times[launch.unit].begin_ns);
    }
}

// A warp's part of the slots: a contiguous range, so that lists are in slot order.
struct SlotRange {
    std::uint32_t begin;
    std::uint32_t end;
};

// num_slots: below 2^24 (a count word's room).
__device__ __forceinline__ SlotRange slots_of_warp(std::uint32_t num_slots, std::uint32_t warp) {
    const std::uint32_t share = round_up(ceil_div(num_slots, kWarps), 32U);
    const std::uint32_t begin = share * warp;
    const std::uint32_t end = begin + share;
    return {begin < num_slots ? begin : num_slots, end < num_slots ? end : num_slots};
}

// One warp, 32 slots: a lane's place in its expert's list is the warp's next free entry plus the
// lanes before it with the same expert. expert < 0: unused slot.
__device__ __forceinline__ void place_slots(const GpuLaunch& gpu, const Launch& launch,
                                            const Accounts& accounts, std::uint32_t slot,
                                            std::int32_t expert, bool write_lists) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const auto e = static_cast<std::uint32_t>(expert);
    const std::uint32_t own = e * kListStride + ptx::thread_idx() / 32;
    const std::uint32_t same = ptx::match_any(e);
    const std::uint32_t before = ptx::count_bits(same & ((1U << lane) - 1));
    if (write_lists && expert >= 0) {
        protocol::slot_list<GpuMemory>(
            memory, e / memory.heap.experts_per_rank, memory.rank(),
            launch.generation)[accounts.offsets[e] + accounts.list_next[own] + before] = slot;
    }
    ptx::warp_barrier();
    if (expert >= 0 && before == 0) accounts.list_next[own] += ptx::count_bits(same);
    ptx::warp_barrier();
}

// One lane: the id of its slot, -1 past the range.
__device__ __forceinline__ std::int64_t load_id(const GpuLaunch& gpu, const SlotRange& range,
                                                std::uint32_t slot) {
    if (slot >= range.end) return -1;
    return gpu.memory.heap.expert_id(gpu.memory.own_heap(), slot);
}

// One warp, 32 slots: id -> expert, -1 for unused slots and for ids past the last expert, the first
// of which is noted.
__device__ __forceinline__ std::int32_t check_id(const GpuLaunch& gpu, const Accounts& accounts,
                                                 std::uint32_t slot, std::int64_t id) {
    const bool bad = id >= static_cast<std::int64_t>(gpu.num_experts);
    const std::uint32_t bad_lanes = ptx::ballot(bad);
    if (bad_lanes != 0 && ptx::thread_idx() % 32 == ptx::first_bit(bad_lanes)) {
        std::uint32_t& first = accounts.bad_slot[ptx::thread_idx() / 32];
        if (first == kNoSlot) first = slot;
    }
    return bad || id < 0 ? -1 : static_cast<std::int32_t>(id);
}

// All warps of CTA 0, each over its range of slots. First pass counts, second writes lists.
// `first_id`: of the lane's first slot. The next slot's id is on its way while one is placed.
__device__ __forceinline__ void walk_slots(const GpuLaunch& gpu, const Launch& launch,
                                           const Accounts& accounts, const SlotRange& range,
                                           std::int64_t first_id, bool write_lists) {
    std::int64_t id = first_id;
    std::uint32_t slot = range.begin + ptx::thread_idx() % 32;
#pragma unroll 1
    for (std::uint32_t first = range.begin; first < range.end; first += 32) {
        const std::int64_t next_id = load_id(gpu, range, slot + 32);
        place_slots(gpu, launch, accounts, slot, check_id(gpu, accounts, slot, id), write_lists);
        id = next_id;
        slot += 32;
    }
}

// CTA 0, warp 0: the launch's first id past the last expert, for the host.
__device__ __forceinline__ void note_bad_index(const GpuLaunch& gpu, const Launch& launch,
                                               const Accounts& accounts) {
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t slot = lane < kWarps ? accounts.bad_slot[lane] : kNoSlot;
    const std::uint32_t bad_warps = ptx::ballot(slot != kNoSlot);
    if (bad_warps == 0 || lane != ptx::first_bit(bad_warps)) return;
    layout::StateWords& state = *gpu.memory.state();
    if (state.bad_index_claimed != 0) return;
    state.bad_index_claimed = std::uint64_t{launch.generation} + 1;
    state.bad_index_slot = slot;
    state.bad_index_id = gpu.memory.heap.expert_id(gpu.memory.own_heap(), slot);
}

// Warps' counts -> counts of the experts, and where each warp's entries start among an expert's.
// Half a warp per expert, a lane a warp.
__device__ __forceinline__ void sum_warps(const GpuLaunch& gpu, const Accounts& accounts) {
    static_assert(kWarps == 16);
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t warp = lane % kWarps;
#pragma unroll 1
    for (std::uint32_t first = ptx::thread_idx() / 32 * 2; first < gpu.num_experts;
         first += 2 * kWarps) {
        const std::uint32_t e = first + lane / kWarps;
        const bool is_expert = e < gpu.num_experts;
        const std::uint32_t at = e * kListStride + warp;
        const std::uint32_t own = is_expert ? accounts.list_next[at] : 0;
        std::uint32_t upto = own;
#pragma unroll
        for (std::uint32_t step = 1; step < kWarps; step *= 2) {
            const std::uint32_t other = ptx::shuffle_up(upto, step);
            if (warp >= step) upto += other;
        }
        if (is_expert) accounts.list_next[at] = upto - own;
        if (is_expert && warp + 1 == kWarps) accounts.counts[e] = upto;
    }
}

// Counts -> where the entries of each expert start in its owner's list; num_experts = ranks *
// per_rank. One warp per owner.
__device__ __forceinline__ void place_lists(const GpuLaunch& gpu, const Accounts& accounts) {
    const std::uint32_t per_rank = gpu.memory.heap.experts_per_rank;
    const std::uint32_t lane = ptx::thread_idx() % 32;
#pragma unroll 1
    for (std::uint32_t owner = ptx::thread_idx() / 32; owner < gpu.memory.heap.num_ranks;
         owner += kWarps) {
        std::uint32_t start = 0;
#pragma unroll 1
        for (std::uint32_t first = 0; first < per_rank; first += 32) {
            const std::uint32_t e = first + lane;
            const std::uint32_t count = e < per_rank ? accounts.counts[owner * per_rank + e] : 0;
            const std::uint32_t upto = device::warp_sum_upto(count);
            if (e < per_rank) accounts.offsets[owner * per_rank + e] = start + upto - count;
            start += ptx::shuffle(upto, 31);
        }
    }
}

// CTA 0: counts per expert, slot lists to the owners, then the count words (R2).
template <class Gpu>
__device__ __forceinline__ void publish_routing(const Gpu& gpu, const Launch& launch,
                                                const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t thread = ptx::thread_idx();
    const SlotRange range = slots_of_warp(launch.num_tokens * memory.heap.topk, thread / 32);
    const std::int64_t first_id = load_id(gpu, range, range.begin + thread % 32);
#pragma unroll 1
    for (std::uint32_t i = thread; i < kListStride * gpu.num_experts; i += kThreads) {
        accounts.list_next[i] = 0;
    }
    if (thread < kWarps) accounts.bad_slot[thread] = kNoSlot;
    role_barrier();
    // One body for both passes: the second finds its instructions in the cache.
#pragma unroll 1
    for (std::uint32_t pass = 0; pass < 2; ++pass) {
        walk_slots(gpu, launch, accounts, range, first_id, pass == 1);
        role_barrier();
        if (pass == 1) break;
        if (thread < 32) note_bad_index(gpu, launch, accounts);
        sum_warps(gpu, accounts);
        role_barrier();
        place_lists(gpu, accounts);
        role_barrier();
        log_step(gpu, launch, {trace::Kind::kCount});
    }
#pragma unroll 1
    for (std::uint32_t i = thread; i < gpu.num_experts; i += kThreads) {
        std::uint32_t e = i + memory.rank() * per_rank;
        if (e >= gpu.num_experts) e -= gpu.num_experts;
        const std::uint32_t owner = e / per_rank;
        protocol::publish_count<GpuMemory>(memory, launch, owner, e - owner * per_rank,
                                           accounts.counts[e]);
    }
    ptx::fence_async_proxy_shared();  // rows come in the lists' place
    role_barrier();                   // counts are overwritten by what is received
    log_step(gpu, launch, {.kind = trace::Kind::kRoute, .task = 0});
}

// One warp: rows and blocks of the experts before each.
__device__ __forceinline__ void sum_before(const GpuLaunch& gpu, const Accounts& accounts) {
    const std::uint32_t per_rank = gpu.memory.heap.experts_per_rank;
    const std::uint32_t row_block = gpu.memory.plan.row_block;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    std::uint32_t row = 0;
    std::uint32_t block = 0;
#pragma unroll 1
    for (std::uint32_t first = 0; first <= per_rank; first += 32) {
        const std::uint32_t e = first + lane;
        std::uint32_t rows = 0;
#pragma unroll 1
        for (std::uint32_t s = 0; e < per_rank && s < gpu.memory.heap.num_ranks; ++s) {
            rows += accounts.counts[s * per_rank + e];
        }
        const std::uint32_t blocks = ceil_div(rows, row_block);
        const std::uint32_t rows_upto = device::warp_sum_upto(rows);
        const std::uint32_t blocks_upto = device::warp_sum_upto(blocks);
        if (e <= per_rank) {
            accounts.first_row[e] = row + rows_upto - rows;
            accounts.first_block[e] = block + blocks_upto - blocks;
        }
        row += ptx::shuffle(rows_upto, 31);
        block += ptx::shuffle(blocks_upto, 31);
    }
}

// One warp: where the entries of each local expert start in the list of `source`, and its rows.
// Returns false if they do not fit the list: the first such expert is reported.
__device__ __forceinline__ bool locate_source(const GpuLaunch& gpu, const Launch& launch,
                                              const Accounts& accounts, std::uint32_t source) {
    const std::uint32_t per_rank = gpu.memory.heap.experts_per_rank;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t* counts = accounts.counts + source * per_rank;
    std::uint64_t start = 0;
#pragma unroll 1
    for (std::uint32_t first = 0; first < per_rank; first += 32) {
        const std::uint32_t e = first + lane;
        const std::uint32_t count = e < per_rank ? counts[e] : 0;  // below 2^24: 32 fit a word
        const std::uint32_t upto = device::warp_sum_upto(count);
        if (e < per_rank) {
            accounts.offsets[source * per_rank + e] =
                static_cast<std::uint32_t>(start + upto - count);
        }
        const bool fits = start + upto <= gpu.memory.heap.max_slots();
        const std::uint32_t misfits = ptx::ballot(!fits);
        if (misfits != 0) {
            if (lane != ptx::first_bit(misfits)) return false;
            return protocol::check_entries<GpuMemory>(gpu.memory, launch, source, e, start + upto);
        }
        start += ptx::shuffle(upto, 31);
    }
    if (lane == 0) accounts.source_rows[source] = static_cast<std::uint32_t>(start);
    return true;
}

// All threads: every source's count words, then entries, rows and blocks before each expert.
__device__ __forceinline__ bool receive_routing(const GpuLaunch& gpu, const Launch& launch,
                                                const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t cells = memory.heap.num_ranks * per_rank;
    const std::uint32_t thread = ptx::thread_idx();
#pragma unroll 1
    for (std::uint32_t i = thread; i < cells; i += kThreads) {
        const std::uint32_t source = i / per_rank;
        if (!protocol::wait_count<GpuMemory>(memory, launch, source, i - source * per_rank,
                                             &accounts.counts[i])) {
            *accounts.failed = 1;
            break;
        }
    }
    role_barrier();
    if (*accounts.failed != 0) return false;
    // The last warp sums over experts, the others over sources.
    const std::uint32_t warp = thread / 32;
    if (warp == kWarps - 1) {
        sum_before(gpu, accounts);
    } else {
#pragma unroll 1
        for (std::uint32_t s = warp; s < memory.heap.num_ranks; s += kWarps - 1) {
            if (!locate_source(gpu, launch, accounts, s)) *accounts.failed = 1;
        }
    }
    role_barrier();
    return *accounts.failed == 0;
}

// CTA 0, when role 2 has been told: what the host reads after the launch, and `done` of peers
// without rows.
__device__ __forceinline__ void note_counts(const GpuLaunch& gpu, const Launch& launch,
                                            const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t cells = memory.heap.num_ranks * per_rank;
    const std::uint32_t thread = ptx::thread_idx();
    auto* statistics = memory.at<std::uint64_t>(memory.local.statistics);
#pragma unroll 1
    for (std::uint32_t e = thread; e < per_rank; e += kThreads) {
        statistics[e] += accounts.first_row[e + 1] - accounts.first_row[e];
    }
#pragma unroll 1
    for (std::uint32_t i = thread; i < cells; i += kThreads) {
        memory.source_count(0)[i] = accounts.counts[i];
        memory.source_offset(0)[i] = accounts.offsets[i];
    }
#pragma unroll 1
    for (std::uint32_t s = thread; s < memory.heap.num_ranks; s += kThreads) {
        if (accounts.source_rows[s] == 0)
            protocol::publish_done_without_rows<GpuMemory>(memory, launch, s);
    }
    if (thread != 0) return;
    memory.state()->rows_received += accounts.first_row[per_rank];
    memory.state()->blocks_received += accounts.first_block[per_rank];
}

// CTA 0: the tables that role 2 reads; the order of publish_num_blocks is R7.
template <class Gpu>
__device__ __forceinline__ void publish_blocks(const Gpu& gpu, const Launch& launch,
                                               const Accounts& accounts) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t thread = ptx::thread_idx();
#pragma unroll 1
    for (std::uint32_t e = thread; e < per_rank; e += kThreads) {
        const std::uint32_t rows = accounts.first_row[e + 1] - accounts.first_row[e];
        std::uint32_t index = accounts.first_block[e];
#pragma unroll 1
        for (std::uint32_t first = 0; first < rows; first += memory.plan.row_block) {
            const std::uint32_t left = rows - first;
            const protocol::Block block = protocol::block_at(memory, launch, index++);
            protocol::publish_block<GpuMemory>(
                memory, launch, block, left < memory.plan.row_block ? left : memory.plan.row_block,
                e);
        }
    }
#pragma unroll 1
    for (std::uint32_t s = thread; s < memory.heap.num_ranks; s += kThreads) {
        protocol::set_rows_target(memory, s, accounts.source_rows[s]);
    }
    role_barrier();
    if (thread == 0) {
        protocol::publish_num_blocks<GpuMemory>(memory, launch, accounts.first_block[per_rank]);
    }
    log_step(gpu, launch, {.kind = trace::Kind::kRoute, .task = 1});
    note_counts(gpu, launch, accounts);
}

}  // namespace gcmoe::cuda::dispatch
