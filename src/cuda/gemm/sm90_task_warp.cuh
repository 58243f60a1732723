// The task warp and the finish warp of role 2. One takes tickets and hands tasks out, the other
// signals what the math warps have read and stored: no math thread and no copy ever waits for the
// memory system's releases (1 to 2 us each beside a streaming SM).
//
// Task k + 1 is taken when the token warp has nearly copied task k (ticket_wanted). The task warp
// waits for nobody else: the block table stands before num_blocks. The finish warp's
// producer_acquire waits for earlier tickets only (R26), and it signals in the order of tickets.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cuda/device/launch_order.cuh"
#include "cuda/gemm/sm90_frame.cuh"
#include "cuda/ptx/math.cuh"
#include "protocol/barrier.hpp"
#include "protocol/block_list.hpp"
#include "protocol/done.hpp"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"
#include "protocol/tickets.hpp"

namespace gcmoe::cuda::gemm {

template <std::uint32_t kMaxRows>
struct TaskWarp {
    const GpuLaunch& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;
    schedule::TaskOrder order;         // role 2's list
    schedule::TaskOrder shared_order;  // with role 4: the shared expert's list
    bool in_shared;                    // takes from shared_order
    std::uint64_t first_ticket;        // of role 2's list, taken while role 1 was waited for
    bool has_first;                    // and not used yet

    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const {
        return ptx::thread_idx() % 32;
    }

    // Lane 0: rows and expert of a routed task; an expert without weights is reported.
    __device__ __forceinline__ bool find_rows(GpuTask* task) {
        const layout::RankMemory& memory = gpu.memory;
        const protocol::Block block = protocol::block_at(memory, launch, task->block);
        task->place = block.place;
        if (!protocol::wait_block<GpuMemory>(memory, launch, block, &task->rows, &task->expert))
            return false;
        const bool known = task->expert < memory.heap.experts_per_rank && task->rows != 0 &&
                           task->rows <= memory.plan.row_block;
        if (known) {
            const GpuExpert& expert = gpu.experts[task->expert];
            task->matrix = is_first(task->kind) ? expert.first : expert.second;
            if (task->matrix.tiles != nullptr) return true;
        }
        protocol::WaitSite site = protocol::ring_site(Signal::kBlockTable, block, 0);
        site.expert = static_cast<std::int32_t>(task->expert);
        protocol::report_stall<GpuMemory>(memory, launch, site,
                                          known ? StallCause::kMissingExpert : StallCause::kCorrupt,
                                          task->rows, 0);
        return false;
    }

    // Lane 0: the next task of role 2's list, then (with role 4) of the shared one. False = none.
    __device__ __forceinline__ bool take(schedule::Task* task) {
        std::uint64_t ticket = 0;
        if (!in_shared) {
            ticket = first_ticket;
            if (!has_first) protocol::take_ticket<GpuMemory>(gpu.memory, &ticket);
            has_first = false;
            if (ticket < schedule::num_tasks(order)) {
                *task = schedule::task_at(order, ticket);
                return true;
            }
            in_shared = true;
        }
        if (gpu.has_role4 == 0) return false;
        protocol::take_shared_ticket<GpuMemory>(gpu.memory, &ticket);
        if (ticket >= schedule::num_tasks(shared_order)) return false;
        *task = schedule::task_at(shared_order, ticket);
        return true;
    }

    // Lane 0: the next task; false = this CTA gives up.
    __device__ __forceinline__ bool next_task(GpuTask* task) {
        const layout::RankMemory& memory = gpu.memory;
        schedule::Task from;
        if (!take(&from)) {
            task->is_end = 1;
            return true;
        }
        task->kind = from.kind;
        task->block = from.block;
        task->index = from.index;
        task->chunks = chunks_of(memory, from.kind);
        task->row_tiles = row_tiles(memory, from.kind);
        if (!is_shared(from.kind)) return find_rows(task);
        const std::uint32_t left = launch.num_tokens - from.block * memory.plan.row_block;
        task->rows = left < memory.plan.row_block ? left : memory.plan.row_block;
        return true;
    }

    // Lane 0: hands out the next task; after an abort, the end task. True if it was the end.
    __device__ __forceinline__ bool publish(std::uint32_t slot) {
        GpuTask task{};
        if (aborted(&shared->abort) || !next_task(&task)) {
            shared->abort = 1;
            task.is_end = 1;
        }
        shared->tasks[slot] = task;
        ptx::mbarrier_arrive(&shared->task_full[slot]);
        return task.is_end != 0;
    }

    // Whole warp: the slot's maxima are free of the last task's.
    __device__ __forceinline__ void clear_amax(std::uint32_t slot) {
        std::uint32_t* words = shared->amax[slot][0];
        for (std::uint32_t i = lane(); i < 4 * kMaxRows; i += 32) words[i] = 0;
        ptx::warp_barrier();
    }

    __device__ __forceinline__ void run() {
        RingCursor<kTaskSlots> slots;
        for (std::uint32_t taken = 0;; ++taken) {
            wait_phase(&shared->task_free[slots.stage], slots.phase ^ 1);
            clear_amax(slots.stage);
            bool is_end = false;
            if (lane() == 0) is_end = publish(slots.stage);
            if (ptx::shuffle(static_cast<std::uint32_t>(is_end), 0) != 0) return;
            slots.advance();
            wait_phase(&shared->ticket_wanted, taken & 1);
        }
    }
};

// What an event of the task, or of the wait for its rows, is about.
__device__ __forceinline__ device::LogSite site_of(const GpuTask& task) {
    device::LogSite site{.kind = trace::Kind::kFirstGemm,
                         .block = task.block,
                         .expert = task.expert,
                         .task = task.index,
                         .signal = Signal::kL1Full};
    switch (task.kind) {
        case schedule::TaskKind::kFirstGemm:
            return site;
        case schedule::TaskKind::kSecondGemm:
            site.kind = trace::Kind::kSecondGemm;
            site.signal = Signal::kL2Full;
            return site;
        case schedule::TaskKind::kSharedFirst:
            site.kind = trace::Kind::kSharedFirst;
            site.expert = trace::kNoIndex;
            return site;
        case schedule::TaskKind::kSharedSecond:
            site.kind = trace::Kind::kSharedSecond;
            site.signal = Signal::kSharedReady;
            site.expert = trace::kNoIndex;
            return site;
    }
    return site;
}

// The finish warp.
template <std::uint32_t kMaxRows, class Gpu>
struct FinishWarp {
    const Gpu& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;

    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const {
        return ptx::thread_idx() % 32;
    }

    // Lane 0 of a first-GEMM task: its activations may be stored.
    __device__ __forceinline__ void allow_stores(const GpuTask& task, std::uint32_t slot) {
        if (task.kind == schedule::TaskKind::kFirstGemm) {
            const protocol::Block block = protocol::block_at(gpu.memory, launch, task.block);
            using Ring = protocol::ActivationRing<GpuMemory>;
            if (!Ring::producer_acquire(gpu.memory, launch, block)) shared->abort = 1;
        }
        ptx::mbarrier_arrive(&shared->may_store[slot]);
    }

    // Whole warp: all rows of the task are stored (R21).
    __device__ __forceinline__ void count_off(const GpuTask& task, std::uint32_t slot) {
        for (std::uint32_t first = 0; first < task.rows; first += 32) {
            const std::uint32_t row = first + lane();
            const bool live = row < task.rows;
            const std::uint32_t peer = live ? shared->origins[slot][row].rank : ~0U;
            const std::uint32_t same = ptx::match_any(peer);
            if (live && ptx::first_bit(same) == lane()) {
                protocol::count_off_rows<GpuMemory>(gpu.memory, launch, peer,
                                                    ptx::count_bits(same));
            }
        }
    }

    // Whole warp: everything of the task is read and stored; tells the other units.
    __device__ __forceinline__ void signal(const GpuTask& task, std::uint32_t slot) {
        const layout::RankMemory& memory = gpu.memory;
        const protocol::Block block = protocol::block_at(memory, launch, task.block);
        if (task.kind == schedule::TaskKind::kSecondGemm) count_off(task, slot);
        if (lane() != 0) return;
        switch (task.kind) {
            case schedule::TaskKind::kFirstGemm:
                protocol::ActivationRing<GpuMemory>::producer_commit(memory, block, task.index);
                protocol::TokenRing<GpuMemory>::consumer_release(memory, block);  // R13, R14
                return;
            case schedule::TaskKind::kSecondGemm:
                protocol::ActivationRing<GpuMemory>::consumer_release(memory, block);
                return;
            case schedule::TaskKind::kSharedFirst:
                protocol::commit_shared<GpuMemory>(memory, task.block);
                return;
            case schedule::TaskKind::kSharedSecond:
                return;
        }
    }

    // Lane 0: the task ended at `end_ns`. It began when its rows were there and the one before had
    // ended; what of the wait for the rows the unit stood still for is an event, too.
    __device__ __forceinline__ void log_task(const GpuTask& task, std::uint32_t slot,
                                             std::uint64_t end_ns) const {
        if constexpr (device::kKeepsLogs<Gpu>) {
            trace::UnitLog* log = log_of(gpu, launch);
            const TaskTimes& times = shared->times[slot];
            const std::uint64_t idle_ns = device::after_last(*log, times.wait_ns);
            const std::uint64_t begin_ns = idle_ns < times.ready_ns ? times.ready_ns : idle_ns;
            device::LogSite site = site_of(task);
            const bool waits = task.kind != schedule::TaskKind::kSharedFirst;
            if (waits && idle_ns < begin_ns) {
                const trace::Kind kind = site.kind;
                site.kind = trace::Kind::kWait;
                device::log_event(log, launch, site, {idle_ns, begin_ns});
                site.kind = kind;
            }
            site.signal = Signal::kNone;
            device::log_event(log, launch, site, {begin_ns, end_ns});
        }
    }

    __device__ __forceinline__ void run() {
        RingCursor<kTaskSlots> slots;
        for (;;) {
            const std::uint32_t slot = slots.stage;
            wait_phase(&shared->task_full[slot], slots.phase);
            const GpuTask& task = shared->tasks[slot];
            if (task.is_end != 0) return;
            if (lane() == 0) allow_stores(task, slot);
            ptx::warp_barrier();
            wait_phase(&shared->task_done[slot], slots.phase);
            const std::uint64_t end_ns = device::log_clock(gpu);
            if (!aborted(&shared->abort)) {
                signal(task, slot);
                if (lane() == 0) log_task(task, slot, end_ns);
            }
            ptx::warp_barrier();
            if (lane() == 0) ptx::mbarrier_arrive(&shared->task_free[slot]);
            slots.advance();
        }
    }
};

// Lane 0 of the task warp, the log's writer until the first task is handed out: the CTA knows its
// launch; role 1 has told it the blocks.
template <class Gpu>
__device__ __forceinline__ void log_begin(const Gpu& gpu, const Launch& launch) {
    if constexpr (device::kKeepsLogs<Gpu>) {
        device::log_step(log_of(gpu, launch), launch, {trace::Kind::kBegin},
                         gpu.compute_times[launch.unit].begin_ns);
    }
}
template <class Gpu>
__device__ __forceinline__ void log_told(const Gpu& gpu, const Launch& launch) {
    if constexpr (device::kKeepsLogs<Gpu>) {
        const Signal signal = gpu.overlap != 0 ? Signal::kNumBlocks : Signal::kOverlapOff;
        device::log_step(log_of(gpu, launch), launch,
                         {.kind = trace::Kind::kWait, .signal = signal}, 0);
    }
}

// The task warp's whole launch.
template <std::uint32_t kMaxRows, class Gpu>
__device__ __forceinline__ void run_task_warp(const Gpu& gpu, const Launch& launch,
                                              SharedStorage<kMaxRows>* shared) {
    std::uint32_t num_blocks = 0;
    std::uint64_t first_ticket = 0;
    if (ptx::thread_idx() % 32 == 0 && gpu.is_role4 == 0) {
        log_begin(gpu, launch);
        protocol::take_ticket<GpuMemory>(gpu.memory, &first_ticket);
        const bool ok =
            (gpu.overlap != 0 || protocol::wait_role1_left<GpuMemory>(gpu.memory, launch)) &&
            protocol::wait_num_blocks<GpuMemory>(gpu.memory, launch, &num_blocks);
        if (!ok) shared->abort = 1;
        log_told(gpu, launch);
    }
    num_blocks = ptx::shuffle(num_blocks, 0);
    const schedule::TaskOrder all = device::task_order(gpu, num_blocks, launch.num_tokens);
    const bool split = gpu.has_role4 != 0;
    TaskWarp<kMaxRows> warp{gpu,
                            launch,
                            shared,
                            split ? schedule::routed_part(all) : all,
                            schedule::shared_part(all),
                            gpu.is_role4 != 0,
                            first_ticket,
                            gpu.is_role4 == 0};
    warp.run();
}

}  // namespace gcmoe::cuda::gemm
