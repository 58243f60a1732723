// The copy warps of role 2: one for tokens, with the waits for the ring's signals, two for weights.
// They run ahead of the math, into the next task as soon as it is handed out.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/gemm/sm90_frame.cuh"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"

namespace gcmoe::cuda::gemm {

// The token warp's view of the rings and the launch.
template <std::uint32_t kMaxRows>
struct TokenWarp {
    const GpuLaunch& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;
    RingCursor<SharedStorage<kMaxRows>::kTokenStages> tokens;
    RingCursor<kTaskSlots> slots;
    std::uint64_t ready = 0;  // chunks of the current second-GEMM task that lane 0 has acquired

    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const {
        return ptx::thread_idx() % 32;
    }

    // Lane 0: waits until `count` chunks from `chunk` on of the task's rows may be read.
    __device__ __forceinline__ bool wait_chunks(const GpuTask& task, std::uint32_t chunk,
                                                std::uint32_t count) {
        const layout::RankMemory& memory = gpu.memory;
        const protocol::Block block = protocol::block_at(memory, launch, task.block);
        bool ok = true;
        bool acquired = chunk == 0;
        if (task.kind == schedule::TaskKind::kFirstGemm && chunk == 0) {
            ok = protocol::TokenRing<GpuMemory>::consumer_wait(memory, launch, block);
        }
        if (task.kind == schedule::TaskKind::kSecondGemm) {
            using Ring = protocol::ActivationRing<GpuMemory>;
            const std::uint64_t before = ready;
            ok = chunk != 0 || Ring::consumer_acquire(memory, launch, block);
            for (std::uint32_t i = 0; i < count; ++i) {
                ok = ok && Ring::consumer_wait(memory, launch, block, chunk + i, &ready);
            }
            acquired = acquired || ready != before;
        }
        if (task.kind == schedule::TaskKind::kSharedSecond && chunk == 0) {
            ok = protocol::wait_shared<GpuMemory>(memory, launch, task.block);
        }
        // Acquired rows are read by the copy engine, at this thread's word.
        if (acquired) ptx::fence_async_proxy();
        return ok;
    }

    // Lane 0, with a task's first pair: the block's origins (weights, destinations) and the row
    // factors of the task's rows.
    __device__ __forceinline__ void load_task_rows(const GpuTask& task, std::uint64_t* full) {
        const layout::RankMemory& memory = gpu.memory;
        const layout::Origin* origins = task.kind == schedule::TaskKind::kFirstGemm
                                            ? memory.ring_origins(task.place)
                                            : memory.act_origins(task.place);
        const std::uint32_t origin_bytes =
            task.rows * static_cast<std::uint32_t>(sizeof(layout::Origin));
        const std::uint32_t left = (task.row_tiles - task.index * kWarpgroups) * 64;
        const std::uint32_t factor_bytes = (left < kTileColumns ? left : kTileColumns) * 4;
        const bool factors = task.matrix.row_factors != nullptr;
        ptx::mbarrier_expect(full, origin_bytes + (factors ? factor_bytes : 0));
        ptx::bulk_load(shared->origins[slots.stage], origins, origin_bytes, full);
        if (factors) {
            ptx::bulk_load(shared->row_factors[slots.stage],
                           task.matrix.row_factors + task.index * kTileColumns, factor_bytes, full);
        }
    }

    // Lane 0: the ring keeps a chunk as the tensor core reads it, so one bulk copy moves it.
    __device__ __forceinline__ void load_ring_chunks(const GpuTask& task, std::uint32_t chunk,
                                                     std::uint32_t count) {
        const layout::RankMemory& memory = gpu.memory;
        const layout::ChunkedRows rows =
            task.kind == schedule::TaskKind::kFirstGemm ? memory.ring_x() : memory.ring_act();
        const std::uint32_t padded = round_up(task.rows, 8U);
        std::uint64_t* full = &shared->token_full[tokens.stage];
        if (chunk == 0) load_task_rows(task, full);
        ptx::mbarrier_arrive_expect(full, count * padded * 132);
        for (std::uint32_t i = 0; i < count; ++i) {
            ptx::bulk_load(shared->tokens[tokens.stage][i], rows.chunk(task.place, chunk + i),
                           padded * 128, full);
            ptx::bulk_load(shared->token_scales[tokens.stage][i],
                           rows.scale(task.place, chunk + i), padded * 4, full);
        }
    }

    // Whole warp, shared expert: rows stand in natural order in x or shared_act; the warp swizzles
    // them itself.
    __device__ __forceinline__ void load_own_chunk(const GpuTask& task, std::uint32_t chunk,
                                                   std::uint32_t in_pair) {
        const layout::RankMemory& memory = gpu.memory;
        const bool first = task.kind == schedule::TaskKind::kSharedFirst;
        const std::uint32_t first_token = task.block * memory.plan.row_block;
        std::uint8_t* stage = shared->tokens[tokens.stage][in_pair];
        for (std::uint32_t i = lane(); i < task.rows * 8; i += 32) {
            const std::uint32_t row = i / 8;
            const std::uint32_t token = first_token + row;
            const std::uint8_t* codes = first
                                            ? memory.heap.x_row(memory.own_heap(), token)
                                            : memory.at<std::uint8_t>(memory.local.shared_act) +
                                                  std::uint64_t{token} * memory.shared_chunks * 128;
            const auto unit =
                *reinterpret_cast<const ptx::Words4*>(codes + chunk * 128 + (i % 8) * 16);
            const int to =
                layout::ring_byte_offset(static_cast<int>(row), static_cast<int>((i % 8) * 16));
            *reinterpret_cast<ptx::Words4*>(stage + to) = unit;
        }
        for (std::uint32_t row = lane(); row < task.rows; row += 32) {
            const std::uint32_t token = first_token + row;
            const std::uint32_t* words =
                first ? memory.heap.x_scale_row(memory.own_heap(), token)
                      : memory.at<std::uint32_t>(memory.local.shared_act_scale) +
                            std::uint64_t{token} * memory.shared_chunks;
            shared->token_scales[tokens.stage][in_pair][row] = words[chunk];
        }
    }

    // Whole warp: one pair of chunks (or the last chunk alone). False: gave up.
    __device__ __forceinline__ bool load_pair(const GpuTask& task, std::uint32_t pair) {
        const std::uint32_t chunk = pair * kPair;
        const std::uint32_t count = task.chunks - chunk < kPair ? task.chunks - chunk : kPair;
        std::uint32_t ok = 1;
        if (lane() == 0) ok = wait_chunks(task, chunk, count) ? 1 : 0;
        if (ptx::shuffle(ok, 0) == 0) {
            shared->abort = 1;
            return false;
        }
        wait_phase(&shared->token_empty[tokens.stage], tokens.phase ^ 1, &shared->abort);
        if (is_shared(task.kind)) {
            for (std::uint32_t i = 0; i < count; ++i) load_own_chunk(task, chunk + i, i);
            ptx::fence_async_proxy_shared();
            ptx::warp_barrier();
            if (lane() == 0) ptx::mbarrier_arrive(&shared->token_full[tokens.stage]);
        } else if (lane() == 0 && !aborted(&shared->abort)) {
            load_ring_chunks(task, chunk, count);
        }
        ptx::warp_barrier();
        tokens.advance();
        return true;
    }

    // Pairs `first` .. `end` - 1 of a task.
    __device__ __forceinline__ bool load_pairs(const GpuTask& task, std::uint32_t first,
                                               std::uint32_t end) {
        for (std::uint32_t pair = first; pair < end; ++pair) {
            if (!load_pair(task, pair)) return false;
        }
        return true;
    }

    __device__ __forceinline__ void run() {
        for (;;) {
            wait_phase(&shared->task_full[slots.stage], slots.phase);
            const GpuTask& task = shared->tasks[slots.stage];
            if (task.is_end != 0) return;
            ready = 0;
            const std::uint32_t pairs = ceil_div(task.chunks, kPair);
            const std::uint32_t early = pairs > kTicketAhead ? pairs - kTicketAhead : 0;
            const bool ok = load_pairs(task, 0, early);
            if (lane() == 0) ptx::mbarrier_arrive(&shared->ticket_wanted);
            if (ok) load_pairs(task, early, pairs);
            if (lane() == 0) ptx::mbarrier_arrive(&shared->task_done[slots.stage]);
            slots.advance();
        }
    }
};

// A weight warp's lane 0: streams the tiles of warpgroups kFirst .. kFirst + kCount - 1, in order
// of use, through their rings. A warpgroup past the matrix's last tile gets nothing, and its ring
// stands.
template <std::uint32_t kFirst, std::uint32_t kCount, std::uint32_t kMaxRows>
struct WeightLane {
    SharedStorage<kMaxRows>* shared;
    std::uint64_t policy;
    RingCursor<kWeightStages> stages[kCount];

    __device__ __forceinline__ void load_task(const GpuTask& task) {
        const std::uint32_t chunks = task.chunks;
        for (std::uint32_t chunk = 0; chunk < chunks; chunk += kPair) {
            const std::uint32_t bytes =
                (chunks - chunk < kPair ? chunks - chunk : kPair) * layout::kFp4TileBytes;
#pragma unroll
            for (std::uint32_t i = 0; i < kCount; ++i) {
                const std::uint32_t group = kFirst + i;
                const std::uint32_t tile = row_tile_of(task, group);
                if (tile >= task.row_tiles) continue;
                const std::uint32_t stage = stages[i].stage;
                wait_phase(&shared->weight_empty[group][stage], stages[i].phase ^ 1,
                           &shared->abort);
                if (aborted(&shared->abort)) return;
                std::uint64_t* full = &shared->weight_full[group][stage];
                ptx::mbarrier_arrive_expect(full, bytes);
                const std::uint64_t at =
                    (std::uint64_t{tile} * chunks + chunk) * layout::kFp4TileBytes;
                ptx::bulk_load_once(shared->weights[group][stage], task.matrix.tiles + at, bytes,
                                    full, policy);
                stages[i].advance();
            }
        }
    }

    __device__ __forceinline__ void run() {
        RingCursor<kTaskSlots> slots;
        for (;;) {
            wait_phase(&shared->task_full[slots.stage], slots.phase);
            const GpuTask& task = shared->tasks[slots.stage];
            if (task.is_end != 0) return;
            // The shared expert's FP8 weights go straight to registers.
            if (!is_shared(task.kind) && !aborted(&shared->abort)) load_task(task);
            ptx::mbarrier_arrive(&shared->task_done[slots.stage]);
            slots.advance();
        }
    }
};

}  // namespace gcmoe::cuda::gemm
