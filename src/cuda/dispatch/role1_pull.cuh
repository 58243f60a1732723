// Role 1's pull: rows of the peers' x into the ring, one warp a row.
#pragma once

#include <cstdint>

#include "cuda/dispatch/role1_routing.cuh"
#include "cuda/ptx/copy.cuh"
#include "schedule/round_robin.hpp"

namespace gcmoe::cuda::dispatch {

// Whole warp: the expert of row `row` of this launch's rows, the last one whose first row is not
// behind it.
__device__ __forceinline__ std::uint32_t expert_of_row(const Accounts& accounts,
                                                       std::uint32_t per_rank, std::uint32_t row) {
#pragma unroll 1
    for (std::uint32_t first = 0;; first += 32) {
        const std::uint32_t e = first + ptx::thread_idx() % 32;
        const std::uint32_t upto = ptx::ballot(e < per_rank && accounts.first_row[e] <= row);
        if (upto != ~0U) return first + ptx::count_bits(upto) - 1;
    }
}

// One of a warp's row buffers and the phase of its barrier.
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

// A row of this launch: where it comes from and goes to, and what was asked for when it was found.
struct PulledRow {
    std::uint32_t source;  // rank
    std::uint32_t slot;    // of that rank
    std::uint32_t token;   // of that rank
    protocol::Block block;
    std::uint32_t row;    // in the block
    std::uint32_t count;  // rows that it fills: itself, and of an expert's last one the padding
    bool has_place;       // the block's place was free when the row was found
    std::uint32_t scale;  // lane i: of chunk i
    float weight;         // lane 0
};

// Whole warp: the row at `position` in the order of schedule::RoundRobin, a lane a source.
template <class Counts>
__device__ __forceinline__ schedule::SourceRow warp_row_at(const Counts& counts,
                                                           std::uint32_t num_ranks,
                                                           std::uint32_t position) {
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const auto rows_below = [&](std::uint32_t index) {
        std::uint32_t rows = 0;
#pragma unroll 1
        for (std::uint32_t s = lane; s < num_ranks; s += 32) {
            const std::uint32_t count = counts(s);
            rows += count < index ? count : index;
        }
        return ptx::warp_sum(rows);
    };
    // The number of rows with an index below i is rows_below(i): bisect on i.
    std::uint32_t low = 0;
    std::uint32_t high = position + 1;
#pragma unroll 1
    while (high - low > 1) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (rows_below(middle) <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    // Pass over the sources that have run out.
    std::uint32_t left = position - rows_below(low);
#pragma unroll 1
    for (std::uint32_t first = 0;; first += 32) {
        const std::uint32_t s = first + lane;
        const bool has = s < num_ranks && counts(s) > low;
        const std::uint32_t having = ptx::ballot(has);
        const std::uint32_t before = ptx::count_bits(having & ((1U << lane) - 1));
        const std::uint32_t found = ptx::ballot(has && before == left);
        if (found != 0) return {first + ptx::first_bit(found), low};
        left -= ptx::count_bits(having);
    }
}

// One warp: finds row `row` of the launch. Returns false if somebody gave up.
__device__ __forceinline__ bool find_row(const GpuLaunch& gpu, const Launch& launch,
                                         const Accounts& accounts, std::uint32_t row,
                                         PulledRow* found) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint32_t expert = expert_of_row(accounts, per_rank, row);
    const std::uint32_t position = row - accounts.first_row[expert];
    const std::uint32_t rows = accounts.first_row[expert + 1] - accounts.first_row[expert];
    const std::uint32_t row_block = memory.plan.row_block;
    const std::uint32_t block = position / row_block;
    found->block = protocol::block_at(memory, launch, accounts.first_block[expert] + block);
    found->row = position - block * row_block;
    found->count = position + 1 == rows ? row_block - found->row : 1;
    const auto counts = [&](std::uint32_t source) {
        return accounts.counts[source * per_rank + expert];
    };
    const schedule::SourceRow from = warp_row_at(counts, memory.heap.num_ranks, position);
    found->source = from.source;
    // One round trip for both: lane 0 reads the list's entry, the others look at the place.
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const std::uint32_t entry = accounts.offsets[from.source * per_rank + expert] + from.index;
    const std::uint32_t* list =
        protocol::slot_list<GpuMemory>(memory, memory.rank(), from.source, launch.generation);
    const std::uint32_t seen = GpuMemory::load_acquire(
        lane == 0 ? list + entry : memory.l1_empty_count(found->block.place));
    found->slot = ptx::shuffle(seen, 0);
    found->has_place =
        protocol::TokenRing<GpuMemory>::is_free(memory, found->block, ptx::shuffle(seen, 1));
    const bool known =
        lane != 0 || protocol::check_slot<GpuMemory>(memory, launch, from.source, found->slot);
    if (!ptx::shuffle(static_cast<std::uint32_t>(known), 0)) return false;
    found->token = found->slot / memory.heap.topk;
    return true;
}

// One lane: asks the copy engine for a piece of a row. The buffer's last piece has been read by the
// whole warp, and fenced.
__device__ __forceinline__ void ask_piece(const RowBuffer& buffer, const std::uint8_t* from,
                                          std::uint32_t bytes) {
    ptx::mbarrier_arrive_expect(buffer.arrived, bytes);
    ptx::bulk_load(buffer.codes, from, bytes, buffer.arrived);
}

// Bytes of the piece of a row that begins at `first`.
__device__ __forceinline__ std::uint32_t piece_bytes(const GpuLaunch& gpu, std::uint32_t first) {
    const std::uint32_t left = gpu.hidden - first;
    return left < kRowPiece ? left : kRowPiece;
}

__device__ __forceinline__ const std::uint8_t* row_codes(const GpuLaunch& gpu,
                                                         const PulledRow& row) {
    const layout::SymmetricHeap& heap = gpu.memory.heap;
    return heap.x_row(gpu.memory.peers.heap(static_cast<int>(row.source)), row.token);
}
__device__ __forceinline__ const std::uint32_t* row_scales(const GpuLaunch& gpu,
                                                           const PulledRow& row) {
    const layout::SymmetricHeap& heap = gpu.memory.heap;
    return heap.x_scale_row(gpu.memory.peers.heap(static_cast<int>(row.source)), row.token);
}

// One warp: asks for the row's first piece, its scales and its weight.
__device__ __forceinline__ void ask_row(const GpuLaunch& gpu, const RowBuffer& buffer,
                                        PulledRow* row) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    if (ptx::elect_one()) ask_piece(buffer, row_codes(gpu, *row), piece_bytes(gpu, 0));
    row->scale = lane < memory.hidden_chunks ? row_scales(gpu, *row)[lane] : 0;
    row->weight = 0.0F;
    if (lane == 0) {
        std::uint8_t* heap = memory.peers.heap(static_cast<int>(row->source));
        row->weight = memory.heap.weight(heap)[row->slot];
    }
}

// One warp: what was asked for last is in the buffer. No deadline: the copy engine ends every copy,
// or the launch with a fault.
__device__ __forceinline__ void wait_piece(RowBuffer* buffer) {
#pragma unroll 1
    while (!ptx::mbarrier_try_wait(buffer->arrived, buffer->phase)) {
    }
    buffer->phase ^= 1;
}

// One warp: waits for the row's place in the ring (R9), writes its origin. False: somebody gave up.
__device__ __forceinline__ bool take_place(const GpuLaunch& gpu, const Launch& launch,
                                           const PulledRow& row) {
    const layout::RankMemory& memory = gpu.memory;
    bool ready = true;
    if (ptx::thread_idx() % 32 == 0) {
        ready = row.has_place ||
                protocol::TokenRing<GpuMemory>::producer_acquire(memory, launch, row.block);
        if (ready) {
            memory.ring_origins(row.block.place)[row.row] =
                layout::Origin{row.source, row.slot, row.weight, 0};
        }
    }
    return ptx::shuffle(static_cast<std::uint32_t>(ready), 0) != 0;
}

// Lane 0: the row stands in the ring; its place was free at `begin_ns`.
template <class Gpu>
__device__ __forceinline__ void log_row(const Gpu& gpu, const Launch& launch, const PulledRow& row,
                                        std::uint64_t begin_ns) {
    if constexpr (device::kKeepsLogs<Gpu>) {
        const std::uint32_t log = launch.unit * device::kDispatchLogs + ptx::thread_idx() / 32;
        device::log_step(&gpu.logs.dispatch[log], launch,
                         {.kind = trace::Kind::kFill,
                          .block = row.block.index,
                          .task = row.row,
                          .peer = row.source},
                         begin_ns);
    }
}

// One warp: a row that was asked for goes into the ring; then one lane counts it (R11). Its codes
// and scales are on their way while the place is waited for. Returns only after its copies.
template <class Gpu>
__device__ __forceinline__ bool store_row(const Gpu& gpu, const Launch& launch,
                                          const PulledRow& row, RowBuffer* buffer) {
    const layout::RankMemory& memory = gpu.memory;
    const std::uint32_t lane = ptx::thread_idx() % 32;
    const bool ready = take_place(gpu, launch, row);
    const std::uint64_t begin_ns = device::log_clock(gpu);
    const std::uint32_t place = row.block.place;
    const layout::ChunkedRows ring = memory.ring_x();
    std::uint32_t scale = row.scale;
#pragma unroll 1
    for (std::uint32_t chunk = lane; ready && chunk < memory.hidden_chunks; chunk += 32) {
        if (chunk >= 32) scale = row_scales(gpu, row)[chunk];
        ring.scale(place, chunk)[row.row] = scale;
    }
#pragma unroll 1
    for (std::uint32_t first = 0; first < gpu.hidden; first += kRowPiece) {
        const std::uint32_t bytes = piece_bytes(gpu, first);
        if (first != 0 && ptx::elect_one()) {
            ask_piece(*buffer, row_codes(gpu, row) + first, bytes);
        }
        wait_piece(buffer);
        if (!ready) return false;  // only now: no copy may be left in flight
        store_piece(gpu, buffer->codes, first / 16, bytes / 16, place, row.row);
        // The ring is read by copy engines, and the buffer is written by this SM's.
        ptx::fence_async_proxy();
        ptx::warp_barrier();
    }
    if (lane == 0) {
        protocol::TokenRing<GpuMemory>::producer_commit(memory, row.block, row.count);
        log_row(gpu, launch, row, begin_ns);
    }
    return true;
}

// All warps of all CTAs: the launch's rows in order, dealt out one by one. A warp asks for its next
// row before it stores the last one.
template <class Gpu>
__device__ __forceinline__ bool pull_rows(const Gpu& gpu, const Launch& launch,
                                          const Accounts& accounts, const Unit& unit,
                                          RowBuffers* buffers) {
    const std::uint32_t warp = ptx::thread_idx() / 32;
    const std::uint32_t stride = unit.num_units * kWarps;
    const std::uint32_t rows = accounts.first_row[gpu.memory.heap.experts_per_rank];
    RowBuffer buffer{buffers->codes[warp][0], &buffers->arrived[warp][0], 0};
    RowBuffer other{buffers->codes[warp][1], &buffers->arrived[warp][1], 0};
    PulledRow current;
    PulledRow next;
    // Neighbouring rows go to different CTAs: a block is pulled by all SMs of the partition at
    // once. CTA 0, which publishes the tables meanwhile, takes the end of every round: of few rows
    // none.
    const std::uint32_t others = unit.num_units - 1;
    const std::uint32_t first =
        unit.idx == 0 ? others * kWarps + warp : warp * others + unit.idx - 1;
    bool has_current = false;
    bool ok = true;
#pragma unroll 1
    for (std::uint32_t row = first; ok; row += stride) {
        const bool has_next = row < rows && find_row(gpu, launch, accounts, row, &next);
        if (has_next) ask_row(gpu, other, &next);
        ok = has_next || row >= rows;
        if (has_current && !store_row(gpu, launch, current, &buffer)) ok = false;
        if (!ok && has_next) wait_piece(&other);  // no copy may be left in flight
        if (!has_next) break;
        current = next;
        has_current = true;
        const RowBuffer stored = buffer;
        buffer = other;
        other = stored;
    }
    return ok;
}

}  // namespace gcmoe::cuda::dispatch
