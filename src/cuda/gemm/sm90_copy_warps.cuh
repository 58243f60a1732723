// The copy warps of role 2: the signal warp (tickets, ring signals, tokens) and the weight warps.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/gemm/sm90_frame.cuh"
#include "protocol/block_list.hpp"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"
#include "protocol/tickets.hpp"

namespace gcmoe::cuda::gemm {

// The signal warp's view of the rings and the launch.
template <std::uint32_t kMaxRows>
struct SignalWarp {
    const GpuLaunch& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;
    schedule::TaskOrder order;
    RingCursor<kTokenStages> tokens;
    RingCursor<kTaskSlots> slots;

    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const {
        return ptx::thread_idx() % 32;
    }

    // Lane 0's verdict for the whole warp; a failure stops the CTA.
    __device__ __forceinline__ bool agree(bool ok) {
        if (!ptx::shuffle(static_cast<std::uint32_t>(ok), 0)) {
            shared->abort = 1;
            return false;
        }
        return true;
    }

    // Takes the next ticket and fills `task`; false = this CTA gives up.
    __device__ __forceinline__ bool next_task(GpuTask* task) {
        bool ok = true;
        GpuTask found{};
        if (lane() == 0) {
            std::uint64_t ticket = 0;
            protocol::take_ticket<GpuMemory>(gpu.memory, &ticket);
            found.is_end = ticket >= schedule::num_tasks(order) ? 1 : 0;
            if (found.is_end == 0) ok = find_rows(schedule::task_at(order, ticket), &found);
        }
        if (!agree(ok)) return false;
        found.kind = static_cast<schedule::TaskKind>(
            ptx::shuffle(static_cast<std::uint32_t>(found.kind), 0));
        found.is_end = ptx::shuffle(found.is_end, 0);
        found.block = ptx::shuffle(found.block, 0);
        found.index = ptx::shuffle(found.index, 0);
        found.rows = ptx::shuffle(found.rows, 0);
        found.expert = ptx::shuffle(found.expert, 0);
        *task = found;
        return true;
    }

    // Lane 0: rows and expert of a task; an expert without weights is reported.
    __device__ __forceinline__ bool find_rows(const schedule::Task& from, GpuTask* task) {
        const layout::RankMemory& memory = gpu.memory;
        task->kind = from.kind;
        task->block = from.block;
        task->index = from.index;
        if (is_shared(from.kind)) {
            const std::uint32_t left = launch.num_tokens - from.block * memory.plan.row_block;
            task->rows = left < memory.plan.row_block ? left : memory.plan.row_block;
            return true;
        }
        const protocol::Block block = protocol::block_at(memory, launch, from.block);
        if (!protocol::wait_block<GpuMemory>(memory, launch, block, &task->rows, &task->expert))
            return false;
        const bool known = task->expert < memory.heap.experts_per_rank && task->rows != 0 &&
                           task->rows <= memory.plan.row_block;
        if (known && gpu.experts[task->expert].first.tiles != nullptr) return true;
        protocol::WaitSite site = protocol::ring_site(Signal::kBlockTable, block, 0);
        site.expert = static_cast<std::int32_t>(task->expert);
        protocol::report_stall<GpuMemory>(memory, launch, site,
                                          known ? StallCause::kMissingExpert : StallCause::kCorrupt,
                                          task->rows, 0);
        return false;
    }

    // Hands a task to the math and weight warps.
    __device__ __forceinline__ void publish_task(const GpuTask& task) {
        wait_phase(&shared->task_empty[slots.stage], slots.phase ^ 1, &shared->abort);
        if (lane() == 0) {
            shared->tasks[slots.stage] = task;
            ptx::mbarrier_arrive(&shared->task_full[slots.stage]);
        }
        ptx::warp_barrier();
    }

    // Waits until chunk `chunk` of the task's rows may be read.
    __device__ __forceinline__ bool wait_chunk(const GpuTask& task, std::uint32_t chunk) {
        const layout::RankMemory& memory = gpu.memory;
        bool ok = true;
        if (lane() == 0) {
            const protocol::Block block = protocol::block_at(memory, launch, task.block);
            if (task.kind == schedule::TaskKind::kFirstGemm && chunk == 0) {
                ok = protocol::TokenRing<GpuMemory>::consumer_wait(memory, launch, block);
            }
            if (task.kind == schedule::TaskKind::kSecondGemm) {
                using Ring = protocol::ActivationRing<GpuMemory>;
                ok = (chunk != 0 || Ring::consumer_acquire(memory, launch, block)) &&
                     Ring::consumer_wait(memory, launch, block, chunk);
            }
            if (task.kind == schedule::TaskKind::kSharedSecond && chunk == 0) {
                ok = protocol::wait_shared<GpuMemory>(memory, launch, task.block);
            }
            ptx::fence_async_proxy();  // acquired rows are read by the copy engine, this thread's
        }
        return agree(ok);
    }

    // Routed rows: the ring keeps a chunk as the tensor core reads it, so one bulk copy moves it.
    __device__ __forceinline__ void load_ring_chunk(const GpuTask& task, std::uint32_t chunk) {
        if (lane() != 0) return;
        const layout::RankMemory& memory = gpu.memory;
        const layout::ChunkedRows rows =
            task.kind == schedule::TaskKind::kFirstGemm ? memory.ring_x() : memory.ring_act();
        const protocol::Block block = protocol::block_at(memory, launch, task.block);
        const std::uint32_t padded = round_up(task.rows, 8U);
        std::uint64_t* full = &shared->token_full[tokens.stage];
        ptx::mbarrier_arrive_expect(full, padded * 132);
        ptx::bulk_load(shared->tokens[tokens.stage], rows.chunk(block.place, chunk), padded * 128,
                       full);
        ptx::bulk_load(shared->token_scales[tokens.stage], rows.scale(block.place, chunk),
                       padded * 4, full);
    }

    // Shared expert: rows stand in natural order in x or shared_act; the warp swizzles them itself.
    __device__ __forceinline__ void load_own_chunk(const GpuTask& task, std::uint32_t chunk) {
        const layout::RankMemory& memory = gpu.memory;
        const bool first = task.kind == schedule::TaskKind::kSharedFirst;
        const std::uint32_t first_token = task.block * memory.plan.row_block;
        std::uint8_t* stage = shared->tokens[tokens.stage];
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
            shared->token_scales[tokens.stage][row] = words[chunk];
        }
        ptx::fence_async_proxy_shared();
        ptx::warp_barrier();
        if (lane() == 0) ptx::mbarrier_arrive(&shared->token_full[tokens.stage]);
    }

    // The block's origins, for routing weights and destinations. Visible to who waits for chunk 0:
    // lane 0 arrives after the warp's stores.
    __device__ __forceinline__ void load_origins(const GpuTask& task) {
        if (is_shared(task.kind)) return;
        const protocol::Block block = protocol::block_at(gpu.memory, launch, task.block);
        const layout::Origin* from = task.kind == schedule::TaskKind::kFirstGemm
                                         ? gpu.memory.ring_origins(block.place)
                                         : gpu.memory.act_origins(block.place);
        for (std::uint32_t row = lane(); row < task.rows; row += 32) {
            *reinterpret_cast<ptx::Words4*>(&shared->origins[slots.stage][row]) =
                *reinterpret_cast<const ptx::Words4*>(&from[row]);
        }
        ptx::warp_barrier();
    }

    // All chunks of one task. The slot's origins are written before chunk 0 is full.
    __device__ __forceinline__ bool feed(const GpuTask& task) {
        const std::uint32_t chunks = chunks_of(gpu.memory, task.kind);
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
            if (!wait_chunk(task, chunk)) return false;
            if (chunk == 0) load_origins(task);
            wait_phase(&shared->token_empty[tokens.stage], tokens.phase ^ 1, &shared->abort);
            if (aborted(&shared->abort)) return false;
            if (is_shared(task.kind)) {
                load_own_chunk(task, chunk);
            } else {
                load_ring_chunk(task, chunk);
            }
            tokens.advance();
        }
        return true;
    }

    __device__ __forceinline__ void run() {
        for (;;) {
            GpuTask task;
            if (!next_task(&task)) return;
            publish_task(task);
            if (task.is_end != 0) return;
            if (!feed(task)) return;
            slots.advance();
        }
    }
};

// A weight warp's lane 0: streams the tiles of warpgroups kFirst .. kFirst + kCount - 1, in order
// of use, through their rings. A warpgroup past the matrix's last tile gets nothing, and its ring
// stands.
template <std::uint32_t kFirst, std::uint32_t kCount, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_weight_warp(const GpuLaunch& gpu,
                                                SharedStorage<kMaxRows>* shared) {
    RingCursor<kTaskSlots> slots;
    RingCursor<kWeightStages> stages[kCount];
    const std::uint64_t policy = ptx::evict_first_policy();
    for (;;) {
        wait_phase(&shared->task_full[slots.stage], slots.phase, &shared->abort);
        if (aborted(&shared->abort)) return;
        const GpuTask task = shared->tasks[slots.stage];
        ptx::mbarrier_arrive(&shared->task_empty[slots.stage]);
        slots.advance();
        if (task.is_end != 0) return;
        if (is_shared(task.kind)) continue;  // FP8 weights go straight to registers
        const GpuExpert& expert = gpu.experts[task.expert];
        const std::uint8_t* from = is_first(task.kind) ? expert.first.tiles : expert.second.tiles;
        const std::uint32_t chunks = chunks_of(gpu.memory, task.kind);
        const std::uint32_t tiles = row_tiles(gpu.memory, task.kind);
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
            for (std::uint32_t i = 0; i < kCount; ++i) {
                const std::uint32_t group = kFirst + i;
                const std::uint32_t tile = row_tile_of(task, group);
                if (tile >= tiles) continue;
                const std::uint32_t stage = stages[i].stage;
                wait_phase(&shared->weight_empty[group][stage], stages[i].phase ^ 1,
                           &shared->abort);
                if (aborted(&shared->abort)) return;
                std::uint64_t* full = &shared->weight_full[group][stage];
                ptx::mbarrier_arrive_expect(full, layout::kFp4TileBytes);
                const std::uint64_t at =
                    (std::uint64_t{tile} * chunks + chunk) * layout::kFp4TileBytes;
                ptx::bulk_load_once(shared->weights[group][stage], from + at, layout::kFp4TileBytes,
                                    full, policy);
                stages[i].advance();
            }
        }
    }
}

}  // namespace gcmoe::cuda::gemm
