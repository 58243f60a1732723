// Role 1's pull: rows of the peers' x into the ring, one warp a row.
#pragma once

#include <cstdint>

#include "cuda/dispatch/role1_routing.cuh"
#include "cuda/ptx/copy.cuh"
#include "schedule/round_robin.hpp"

namespace gcmoe::cuda::dispatch {

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

// One warp's row buffer and the phase of its barrier.
struct RowBuffer {
    std::uint8_t* codes;  // (kRowPiece)
    std::uint64_t* arrived;
    std::uint32_t phase;
};

// One warp: a piece of a row out of the buffer into the ring, in the weights' K order and swizzled.
// A loop, not an unrolled batch: its instructions come from memory, once a launch and SM. Unit t of
// a chunk in quad-block order, t = 4 h + q, is word q of half h of each of the four K32 blocks.
__device__ __forceinline__ void store_piece(const GpuLaunch& gpu, const std::uint8_t* codes,
                                            std::uint32_t first_unit, std::uint32_t units,
                                            std::uint32_t place, std::uint32_t row) {
    const layout::ChunkedRows ring = gpu.memory.ring_x();
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const bool natural = gpu.order == layout::KOrder::kNatural;
    const std::uint32_t t = lane % 8;
    const std::uint32_t from = lane / 8 * 128 + (natural ? t * 16 : t / 4 * 16 + t % 4 * 4);
    const std::uint32_t stride = natural ? 4 : 32;
    const std::uint32_t to = row * 128 + ((t ^ (row & 7)) * 16);
    std::uint8_t* chunk = ring.chunk(place, (first_unit + lane) / 8) + to;
    const std::uint64_t step = 4 * (ring.chunk(place, 1) - ring.chunk(place, 0));
#pragma unroll 1
    for (std::uint32_t u = lane; u < units; u += 32) {
        const std::uint8_t* word = codes + (u - lane) * 16 + from;
        ptx::Words4 words;
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) {
            words.w[i] = *reinterpret_cast<const std::uint32_t*>(word + i * stride);
        }
        *reinterpret_cast<ptx::Words4*>(chunk) = words;
        chunk += step;
    }
}

// Where a row of this launch comes from and goes to.
struct RowWay {
    std::uint32_t source;  // rank
    std::uint32_t slot;    // of that rank
    protocol::Block block;
    std::uint32_t row;  // in the block
};

// One lane: asks the copy engine for a piece of a row. The buffer's last piece has been read by the
// whole warp, and fenced.
__device__ __forceinline__ void ask_piece(const RowBuffer& buffer, const std::uint8_t* from,
                                          std::uint32_t bytes) {
    ptx::mbarrier_arrive_expect(buffer.arrived, bytes);
    ptx::bulk_load(buffer.codes, from, bytes, buffer.arrived);
}

// One warp: copies one row of a peer into the ring. Its codes and scales are on their way while the
// place is waited for (R9).
__device__ __forceinline__ bool copy_row(const GpuLaunch& gpu, const Launch& launch,
                                         const RowWay& way, RowBuffer* buffer) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    std::uint8_t* heap = memory.peers.heap(static_cast<int>(way.source));
    const std::uint32_t token = way.slot / memory.heap.topk;
    const std::uint8_t* codes = memory.heap.x_row(heap, token);
    const std::uint32_t* scales = memory.heap.x_scale_row(heap, token);
    const std::uint32_t chunks = memory.hidden_chunks;
    const bool leader = ptx::elect_one();
    if (leader) ask_piece(*buffer, codes, gpu.hidden < kRowPiece ? gpu.hidden : kRowPiece);
    std::uint32_t scale = lane < chunks ? scales[lane] : 0;
    bool ready = true;
    if (lane == 0) {
        const float weight = memory.heap.weight(heap)[way.slot];
        ready = protocol::TokenRing<GpuMemory>::producer_acquire(memory, launch, way.block);
        if (ready) {
            memory.ring_origins(way.block.place)[way.row] =
                layout::Origin{way.source, way.slot, weight, 0};
        }
    }
    ready = ptx::shuffle(static_cast<std::uint32_t>(ready), 0) != 0;
    const std::uint32_t place = way.block.place;
    const layout::ChunkedRows ring = memory.ring_x();
#pragma unroll 1
    for (std::uint32_t chunk = lane; ready && chunk < chunks; chunk += 32) {
        if (chunk >= 32) scale = scales[chunk];
        ring.scale(place, chunk)[way.row] = scale;
    }
#pragma unroll 1
    for (std::uint32_t first = 0; first < gpu.hidden; first += kRowPiece) {
        const std::uint32_t left = gpu.hidden - first;
        const std::uint32_t bytes = left < kRowPiece ? left : kRowPiece;
        if (first != 0 && leader) ask_piece(*buffer, codes + first, bytes);
        // No deadline: the copy engine ends every copy, or the launch with a fault.
        while (!ptx::mbarrier_try_wait(buffer->arrived, buffer->phase)) {
        }
        buffer->phase ^= 1;
        if (!ready) return false;  // only now: no copy may be left in flight
        store_piece(gpu, buffer->codes, first / 16, bytes / 16, place, way.row);
        // The ring is read by copy engines, and the buffer is written by this SM's.
        ptx::fence_async_proxy();
        ptx::warp_barrier();
    }
    return true;
}

// One warp: pulls row `row` of the launch; then one lane counts the row (R11).
__device__ __forceinline__ bool pull_row(const GpuLaunch& gpu, const Launch& launch,
                                         const Accounts& accounts, std::uint32_t row,
                                         RowBuffer* buffer) {
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
    bool known = true;
    if (lane == 0) {
        const std::uint64_t entry = accounts.offsets[from.source * per_rank + expert] + from.index;
        known = protocol::received_slot<GpuMemory>(memory, launch, from.source, entry, &slot);
    }
    if (!ptx::shuffle(static_cast<std::uint32_t>(known), 0)) return false;
    slot = ptx::shuffle(slot, 0);
    const std::uint32_t row_in_block = position % row_block;
    if (!copy_row(gpu, launch, {from.source, slot, block, row_in_block}, buffer)) return false;
    if (lane == 0) {
        const std::uint32_t padding = position + 1 == rows ? row_block - 1 - row_in_block : 0;
        protocol::TokenRing<GpuMemory>::producer_commit(memory, block, 1 + padding);
    }
    return true;
}

// All warps of all CTAs: the launch's rows in order, dealt out one by one.
__device__ __forceinline__ bool pull_rows(const GpuLaunch& gpu, const Launch& launch,
                                          const Accounts& accounts, RowBuffers* buffers) {
    const std::uint32_t warp = ptx::thread_idx() / 32;
    RowBuffer buffer{buffers->codes[warp], &buffers->arrived[warp], 0};
    const std::uint32_t stride = ptx::num_ctas() * kWarps;
    const std::uint32_t rows = accounts.first_row[gpu.memory.heap.experts_per_rank];
    // Neighbouring rows go to different CTAs: a block is pulled by all SMs of the partition at
    // once. CTA 0, which publishes the tables meanwhile, is the last in turn.
    const std::uint32_t turn = (ptx::cta_idx() + ptx::num_ctas() - 1) % ptx::num_ctas();
    for (std::uint32_t row = warp * ptx::num_ctas() + turn; row < rows; row += stride) {
        if (!pull_row(gpu, launch, accounts, row, &buffer)) return false;
    }
    return true;
}

}  // namespace gcmoe::cuda::dispatch
