// Role 1's pull: rows of the peers' x into the ring, one warp a row.
#pragma once

#include <cstdint>

#include "cuda/dispatch/role1_routing.cuh"
#include "cuda/ptx/copy.cuh"
#include "schedule/round_robin.hpp"

namespace gcmoe::cuda::dispatch {

// 16-byte loads that a lane has in flight: 4 KiB a warp, a row of hidden = 4096.
inline constexpr std::uint32_t kRowBatch = 8;

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

// Four lanes of a quad hold words w = 0..3 of their K32 blocks q = 0..3; afterwards lane q holds
// word q of all four blocks: what the quad-block order keeps in one 16-byte unit. Lane = .. q q h.
__device__ __forceinline__ void turn_quad(ptx::Words4* words) {
    const std::uint32_t q = ptx::thread_idx() % 8 / 2;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; i += 2) {
        const bool odd = q % 2 != 0;
        const std::uint32_t got = ptx::shuffle_xor(odd ? words->w[i] : words->w[i + 1], 2);
        (odd ? words->w[i] : words->w[i + 1]) = got;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
        const bool high = q / 2 != 0;
        const std::uint32_t got = ptx::shuffle_xor(high ? words->w[i] : words->w[i + 2], 4);
        (high ? words->w[i] : words->w[i + 2]) = got;
    }
}

// One warp: the codes of one row, 16 bytes a lane and load, kRowBatch loads in flight.
__device__ __forceinline__ void copy_codes(const GpuLaunch& gpu, const std::uint8_t* from,
                                           std::uint32_t place, std::uint32_t row) {
    const layout::ChunkedRows ring = gpu.memory.ring_x();
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t units = gpu.memory.hidden_chunks * 8;
    const bool natural = gpu.order == layout::KOrder::kNatural;
    // Unit u of a chunk in natural order holds half h = u % 2 of block q = u / 2.
    const std::uint32_t unit = natural ? lane % 8 : 4 * (lane % 2) + lane % 8 / 2;
    const std::uint32_t to = row * 128 + ((unit ^ (row & 7)) * 16);
    for (std::uint32_t first = 0; first < units; first += 32 * kRowBatch) {
        ptx::Words4 words[kRowBatch];
#pragma unroll
        for (std::uint32_t i = 0; i < kRowBatch; ++i) {
            const std::uint32_t u = first + 32 * i + lane;
            if (u < units) words[i] = reinterpret_cast<const ptx::Words4*>(from)[u];
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kRowBatch; ++i) {
            const std::uint32_t u = first + 32 * i + lane;
            if (!natural) turn_quad(&words[i]);
            if (u < units)
                *reinterpret_cast<ptx::Words4*>(ring.chunk(place, u / 8) + to) = words[i];
        }
    }
}

// One warp: copies one row of a peer into the ring, in the weights' K order and swizzled.
__device__ __forceinline__ void copy_row(const GpuLaunch& gpu, std::uint32_t source,
                                         std::uint32_t slot, std::uint32_t place,
                                         std::uint32_t row) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    std::uint8_t* heap = memory.peers.heap(static_cast<int>(source));
    const std::uint32_t token = slot / memory.heap.topk;
    const std::uint32_t* scales = memory.heap.x_scale_row(heap, token);
    const layout::ChunkedRows ring = memory.ring_x();
    for (std::uint32_t chunk = lane; chunk < memory.hidden_chunks; chunk += 32) {
        ring.scale(place, chunk)[row] = scales[chunk];
    }
    if (lane == 0) {
        memory.ring_origins(place)[row] =
            layout::Origin{source, slot, memory.heap.weight(heap)[slot], 0};
    }
    copy_codes(gpu, memory.heap.x_row(heap, token), place, row);
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

}  // namespace gcmoe::cuda::dispatch
