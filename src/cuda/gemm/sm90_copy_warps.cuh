// The copy warps of role 2: one for tokens, with the waits for the ring's signals, one for weights.
// They run ahead of the math, into the next task as soon as it is handed out.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/gemm/sm90_frame.cuh"
#include "cuda/ptx/math.cuh"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"

namespace gcmoe::cuda::gemm {

// The token warp's view of the rings and the launch.
template <std::uint32_t kMaxRows, class Gpu>
struct TokenWarp {
    const Gpu& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;
    RingCursor<SharedStorage<kMaxRows>::kTokenStages> tokens;
    RingCursor<kTaskSlots> slots;
    bool has_worked = false;  // the unit's first routed task has found its block full
    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const {
        return ptx::thread_idx() % 32;
    }

    // One lane: the task's rows are waited for from here on, or are there.
    __device__ __forceinline__ void note_wait() const {
        if constexpr (device::kKeepsLogs<Gpu>) {
            shared->times[slots.stage].wait_ns = ptx::global_timer_ns();
        }
    }
    __device__ __forceinline__ void note_ready() const {
        if constexpr (device::kKeepsLogs<Gpu>) {
            shared->times[slots.stage].ready_ns = ptx::global_timer_ns();
        }
    }

    // One lane: the block's rows may be read; of the second GEMM only what wait_mask says.
    __device__ __forceinline__ bool wait_rows(const GpuTask& task, const protocol::Block& block) {
        if (task.kind == schedule::TaskKind::kSecondGemm) {
            return protocol::ActivationRing<GpuMemory>::consumer_acquire(gpu.memory, launch, block);
        }
        const bool ok = protocol::TokenRing<GpuMemory>::consumer_wait(gpu.memory, launch, block);
        if (!has_worked) gpu.compute_times[launch.unit].first_work_ns = ptx::global_timer_ns();
        has_worked = true;
        ptx::fence_async_proxy();  // acquired rows are read by the copy engine
        note_ready();
        return ok;
    }

    // One lane, second GEMM: chunks `chunk` .. `end` - 1 may be read. `ready`: those acquired so
    // far.
    __device__ __forceinline__ bool wait_mask(const protocol::Block& block, std::uint32_t chunk,
                                              std::uint32_t end, std::uint64_t* ready) {
        const std::uint64_t before = *ready;
        for (; chunk < end; ++chunk) {
            using Ring = protocol::ActivationRing<GpuMemory>;
            if (!Ring::consumer_wait(gpu.memory, launch, block, chunk, ready)) return false;
        }
        if (*ready != before) {
            ptx::fence_async_proxy();  // as above
            note_ready();
        }
        return true;
    }

    // One lane, with a task's first pair: the block's origins (weights, destinations) and the row
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

    // One lane: a task's pairs of chunks. The ring keeps a chunk as the tensor core reads it, so
    // one bulk copy moves it. One lane feeds the whole CTA beside 16 busy warps: whatever can be
    // worked out once a task must not be in the loop.
    __device__ __forceinline__ bool feed_ring(const GpuTask& task, bool* asked) {
        const layout::RankMemory& memory = gpu.memory;
        const bool second = task.kind == schedule::TaskKind::kSecondGemm;
        const protocol::Block block = protocol::block_at(memory, launch, task.block);
        const layout::ChunkedRows rows = second ? memory.ring_act() : memory.ring_x();
        const std::uint8_t* codes = rows.chunk(block.place, 0);
        const std::uint32_t* scales = rows.scale(block.place, 0);
        const std::uint32_t chunks = task.chunks;
        const std::uint32_t padded = round_up(task.rows, 8U);
        note_wait();
        if (!wait_rows(task, block)) return false;
        std::uint64_t ready = 0;
        for (std::uint32_t chunk = 0; chunk < chunks; chunk += kPair) {
            const std::uint32_t end = chunk + kPair < chunks ? chunk + kPair : chunks;
            if (!*asked && chunk + kPair * kTicketAhead >= chunks) {
                *asked = true;
                ptx::mbarrier_arrive(&shared->ticket_wanted);
            }
            if (second && !wait_mask(block, chunk, end, &ready)) return false;
            const std::uint32_t stage = tokens.stage;
            if (!wait_phase(&shared->tokens[stage].empty, tokens.phase ^ 1, &shared->abort)) {
                return false;
            }
            std::uint64_t* full = &shared->tokens[stage].full;
            if (chunk == 0) load_task_rows(task, full);
            ptx::mbarrier_arrive_expect(full, (end - chunk) * padded * 132);
#pragma unroll
            for (std::uint32_t i = 0; i < kPair; ++i) {
                if (chunk + i >= end) break;
                ptx::bulk_load(shared->tokens[stage].codes[i], codes, padded * 128, full);
                ptx::bulk_load(shared->tokens[stage].scales[i], scales, padded * 4, full);
                codes += rows.row_block * 128;
                scales += rows.row_block;
            }
            tokens.advance();
        }
        return true;
    }

    // Whole warp, shared expert: rows stand in natural order in x or shared_act; the warp swizzles
    // them itself.
    __device__ __forceinline__ void load_own_chunk(const GpuTask& task, std::uint32_t chunk,
                                                   std::uint32_t in_pair) {
        const layout::RankMemory& memory = gpu.memory;
        const bool first = task.kind == schedule::TaskKind::kSharedFirst;
        const std::uint32_t first_token = task.block * memory.plan.row_block;
        std::uint8_t* stage = shared->tokens[tokens.stage].codes[in_pair];
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
            shared->tokens[tokens.stage].scales[in_pair][row] = words[chunk];
        }
    }

    // Whole warp: a task of the shared expert.
    __device__ __forceinline__ bool feed_own(const GpuTask& task) {
        std::uint32_t ok = 1;
        if (lane() == 0) note_wait();
        if (lane() == 0 && task.kind == schedule::TaskKind::kSharedSecond) {
            ok = protocol::wait_shared<GpuMemory>(gpu.memory, launch, task.block) ? 1 : 0;
        }
        if (ptx::shuffle(ok, 0) == 0) return false;
        if (lane() == 0) note_ready();
        for (std::uint32_t chunk = 0; chunk < task.chunks; chunk += kPair) {
            const std::uint32_t stage = tokens.stage;
            wait_phase(&shared->tokens[stage].empty, tokens.phase ^ 1, &shared->abort);
            for (std::uint32_t i = 0; i < kPair && chunk + i < task.chunks; ++i) {
                load_own_chunk(task, chunk + i, i);
            }
            ptx::fence_async_proxy_shared();
            ptx::warp_barrier();
            if (lane() == 0) ptx::mbarrier_arrive(&shared->tokens[stage].full);
            tokens.advance();
        }
        return true;
    }

    __device__ __forceinline__ void run() {
        for (;;) {
            wait_phase(&shared->task_full[slots.stage], slots.phase);
            const GpuTask& task = shared->tasks[slots.stage];
            if (task.is_end != 0) return;
            bool ok = true;
            bool asked = false;
            const bool leader = ptx::elect_one();
            if (is_shared(task.kind)) {
                ok = feed_own(task);
            } else if (leader) {
                ok = feed_ring(task, &asked);
            }
            if (!ok) shared->abort = 1;
            if (leader) {
                if (!asked) ptx::mbarrier_arrive(&shared->ticket_wanted);
                ptx::mbarrier_arrive(&shared->task_done[slots.stage]);
            }
            const auto from = static_cast<int>(ptx::first_bit(ptx::ballot(leader)));
            tokens.stage = ptx::shuffle(tokens.stage, from);
            tokens.phase = ptx::shuffle(tokens.phase, from);
            slots.advance();
        }
    }
};

// The weight warp: lane i streams the tiles of warpgroup i through its ring, in order of use. The
// lanes go in step, so that their waits and barriers are one instruction each. A warpgroup past the
// matrix's last tile gets nothing, and its ring stands.
template <std::uint32_t kMaxRows>
struct WeightWarp {
    SharedStorage<kMaxRows>* shared;
    std::uint64_t policy;
    RingCursor<kWeightStages> stages;

    // One lane of a warpgroup that has a tile.
    __device__ __forceinline__ void load_task(const GpuTask& task, std::uint32_t group) {
        const std::uint32_t chunks = task.chunks;
        const std::uint32_t tile_bytes = chunks * layout::kFp4TileBytes;  // of a 64-row group
        const std::uint8_t* from =
            task.matrix.tiles + std::uint64_t{row_tile_of(task, group)} * tile_bytes;
        for (std::uint32_t chunk = 0; chunk < chunks; chunk += kPair) {
            const std::uint32_t bytes =
                chunk + kPair <= chunks ? kPair * layout::kFp4TileBytes : layout::kFp4TileBytes;
            WeightStage<kMaxRows>& stage = shared->weights[stages.stage][group];
            if (!wait_phase(&stage.empty, stages.phase ^ 1, &shared->abort)) return;
            ptx::mbarrier_arrive_expect(&stage.full, bytes);
            ptx::bulk_load_once(stage.tiles, from, bytes, &stage.full, policy);
            stages.advance();
            from += bytes;
        }
    }

    __device__ __forceinline__ void run() {
        const std::uint32_t group = ptx::thread_idx() % 32;
        RingCursor<kTaskSlots> slots;
        for (;;) {
            wait_phase(&shared->task_full[slots.stage], slots.phase);
            const GpuTask& task = shared->tasks[slots.stage];
            if (task.is_end != 0) return;
            // The shared expert's FP8 weights go straight to registers.
            const bool has_tile = group < kWarpgroups && row_tile_of(task, group) < task.row_tiles;
            if (has_tile && !is_shared(task.kind) && !aborted(&shared->abort)) {
                load_task(task, group);
            }
            ptx::warp_barrier();
            if (group == 0) ptx::mbarrier_arrive(&shared->task_done[slots.stage]);
            slots.advance();
        }
    }
};

}  // namespace gcmoe::cuda::gemm
