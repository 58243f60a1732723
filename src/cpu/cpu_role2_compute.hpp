// Role 2 on the CPU: workers take tasks of one total order by ticket.
//
// Waits for: num_blocks and block table (role 1), l1_full_count (role 1), l2_empty_count,
// l2_full_mask and shared_ready (earlier tasks). Reads: ring x, origins, activations, packed
// weights, own x for the shared expert. Writes: activations, peers' combine rows, shared rows,
// `done` of peers whose last row it was.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/compute_tasks.hpp"
#include "cpu/cpu_launch.hpp"
#include "cpu/launch_order.hpp"
#include "cpu/work_log.hpp"
#include "protocol/barrier.hpp"
#include "protocol/block_list.hpp"
#include "protocol/done.hpp"
#include "protocol/generation.hpp"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"
#include "protocol/tickets.hpp"
#include "schedule/task_order.hpp"

namespace gcmoe::cpu {

// Finds a block's expert and rows; a launch that routed to an expert without weights is reported.
template <protocol::SignalMemory M>
[[nodiscard]] bool find_block(const CpuLaunch& cpu, const protocol::Launch& launch,
                              const protocol::Block& block, BlockTask* task) {
    if (!protocol::wait_block<M>(cpu.memory, launch, block, &task->rows, &task->expert)) {
        return false;
    }
    task->place = block.place;
    const bool known = task->expert < cpu.weights->experts.size() && task->rows != 0 &&
                       task->rows <= cpu.memory.plan.row_block;
    if (known && cpu.weights->experts[task->expert] != nullptr) return true;
    protocol::WaitSite site = protocol::ring_site(Signal::kBlockTable, block, 0);
    site.expert = static_cast<std::int32_t>(task->expert);
    const StallCause cause = known ? StallCause::kMissingExpert : StallCause::kCorrupt;
    protocol::report_stall<M>(cpu.memory, launch, site, cause, task->rows, 0);
    return false;
}

// 128 columns of gate and up, SwiGLU, weight, requantisation.
template <protocol::SignalMemory M>
[[nodiscard]] bool run_first_gemm(const CpuLaunch& cpu, const protocol::Launch& launch,
                                  const schedule::Task& task, Scratch* scratch, UnitTimes* times) {
    using protocol::Rule;
    const layout::RankMemory& memory = cpu.memory;
    const protocol::Block block = protocol::block_at(memory, launch, task.block);
    BlockTask work{.task = task.index};
    if (!find_block<M>(cpu, launch, block, &work)) return false;
    if (!protocol::TokenRing<M>::consumer_wait(memory, launch, block)) return false;
    if (times->first_work_ns == 0) times->first_work_ns = M::clock_ns();
    WorkSite site{trace::Kind::kFirstGemm, task.block, work.expert, task.index};
    std::uint64_t work_ns = begin_work<M>(launch);
    const layout::Origin* origins = memory.ring_origins(block.place);
    const auto read_origins = [&] { scratch->origins.assign(origins, origins + work.rows); };
    if (!protocol::keeps<M>(Rule::kReadBeforeL1Release)) {
        protocol::TokenRing<M>::consumer_release(memory, block);
    }
    read_origins();
    work.origins = scratch->origins.data();
    first_gemm(cpu, work, scratch);
    end_work<M>(launch, work_ns, site);
    if (protocol::keeps<M>(Rule::kReadBeforeL1Release)) {
        protocol::TokenRing<M>::consumer_release(memory, block);
    }
    const auto write_origins = [&] {
        if (task.index != 0) return;
        if (!protocol::keeps<M>(Rule::kOriginsBeforeL1Release)) read_origins();
        std::copy(scratch->origins.begin(), scratch->origins.end(),
                  memory.act_origins(block.place));
    };
    if (!protocol::keeps<M>(Rule::kOriginsAfterL2Empty)) write_origins();
    if (!protocol::ActivationRing<M>::producer_acquire(memory, launch, block)) return false;
    work_ns = begin_work<M>(launch);
    store_activations(cpu, work, *scratch);
    if (protocol::keeps<M>(Rule::kOriginsBeforeMask)) write_origins();
    protocol::ActivationRing<M>::producer_commit(memory, block, task.index);
    if (!protocol::keeps<M>(Rule::kOriginsBeforeMask)) write_origins();
    site.kind = trace::Kind::kRequantise;
    end_work<M>(launch, work_ns, site);
    return true;
}

// Counts the task's rows off per peer; the last row of a peer tells it `done`.
template <protocol::SignalMemory M>
void count_off_task(const CpuLaunch& cpu, const protocol::Launch& launch, Scratch* scratch) {
    std::vector<std::uint32_t>& rows_of = scratch->counts;
    rows_of.assign(cpu.memory.heap.num_ranks, 0);
    for (const layout::Origin& origin : scratch->origins) ++rows_of[origin.rank];
    for (std::uint32_t peer = 0; peer < cpu.memory.heap.num_ranks; ++peer) {
        if (rows_of[peer] != 0)
            protocol::count_off_rows<M>(cpu.memory, launch, peer, rows_of[peer]);
    }
}

// second_columns columns of results to the owners of the tokens.
template <protocol::SignalMemory M>
[[nodiscard]] bool run_second_gemm(const CpuLaunch& cpu, const protocol::Launch& launch,
                                   const schedule::Task& task, Scratch* scratch) {
    using protocol::Rule;
    const layout::RankMemory& memory = cpu.memory;
    const protocol::Block block = protocol::block_at(memory, launch, task.block);
    BlockTask work{.task = task.index};
    if (!find_block<M>(cpu, launch, block, &work)) return false;
    if (!protocol::ActivationRing<M>::consumer_acquire(memory, launch, block)) return false;
    const bool reads_first = protocol::keeps<M>(Rule::kReadBeforeL2Release);
    for (std::uint32_t chunk_idx = 0; chunk_idx < memory.inter_chunks; ++chunk_idx) {
        if (!protocol::ActivationRing<M>::consumer_wait(memory, launch, block, chunk_idx))
            return false;
        if (!reads_first && chunk_idx + 1 == memory.inter_chunks) {
            protocol::ActivationRing<M>::consumer_release(memory, block);
        }
        load_activation_chunk(cpu, work, chunk_idx, scratch);
    }
    const std::uint64_t work_ns = begin_work<M>(launch);
    const layout::Origin* origins = memory.act_origins(block.place);
    scratch->origins.assign(origins, origins + work.rows);
    work.origins = scratch->origins.data();
    if (reads_first) protocol::ActivationRing<M>::consumer_release(memory, block);
    const bool stores_first = protocol::keeps<M>(Rule::kStoresBeforeRowsLeft);
    if (!stores_first) count_off_task<M>(cpu, launch, scratch);
    second_gemm(cpu, work, scratch);
    if (stores_first) count_off_task<M>(cpu, launch, scratch);
    end_work<M>(launch, work_ns, {trace::Kind::kSecondGemm, task.block, work.expert, task.index});
    return true;
}

// A shared task; rows come from the rank's own x and never touch the ring.
template <protocol::SignalMemory M>
[[nodiscard]] bool run_shared(const CpuLaunch& cpu, const protocol::Launch& launch,
                              const schedule::Task& task, Scratch* scratch) {
    const std::uint32_t row_block = cpu.memory.plan.row_block;
    const std::uint32_t first = task.block * row_block;
    const SharedTask work{first, std::min(row_block, launch.num_tokens - first), task.index};
    const bool is_first = task.kind == schedule::TaskKind::kSharedFirst;
    if (!is_first && !protocol::wait_shared<M>(cpu.memory, launch, task.block)) return false;
    const std::uint64_t work_ns = begin_work<M>(launch);
    if (is_first) {
        shared_first_gemm(cpu, work, scratch);
        protocol::commit_shared<M>(cpu.memory, task.block);
    } else {
        shared_second_gemm(cpu, work, scratch);
    }
    end_work<M>(launch, work_ns,
                {.kind = is_first ? trace::Kind::kSharedFirst : trace::Kind::kSharedSecond,
                 .block = task.block,
                 .task = task.index});
    return true;
}

template <protocol::SignalMemory M>
[[nodiscard]] bool run_task(const CpuLaunch& cpu, const protocol::Launch& launch,
                            const schedule::Task& task, Scratch* scratch, UnitTimes* times) {
    switch (task.kind) {
        case schedule::TaskKind::kFirstGemm:
            return run_first_gemm<M>(cpu, launch, task, scratch, times);
        case schedule::TaskKind::kSecondGemm:
            return run_second_gemm<M>(cpu, launch, task, scratch);
        case schedule::TaskKind::kSharedFirst:
        case schedule::TaskKind::kSharedSecond:
            return run_shared<M>(cpu, launch, task, scratch);
    }
    return false;
}

// One worker of role 2. Returns false if it left early (a stall is reported).
template <protocol::SignalMemory M>
bool role2_compute(const CpuLaunch& cpu, std::uint32_t unit) {
    UnitTimes& times = cpu.compute_times[unit];
    times = UnitTimes{};
    times.begin_ns = M::clock_ns();
    protocol::Launch launch;
    if (!protocol::begin_launch<M>(cpu.memory, Role::kCompute, unit, cpu.wait_limit_ns, &launch)) {
        return false;
    }
    if (cpu.compute_logs != nullptr) launch.log = cpu.compute_logs + unit;
    if (!cpu.overlap && !protocol::wait_role1_left<M>(cpu.memory, launch)) return false;
    std::uint32_t num_blocks = 0;
    if (!protocol::wait_num_blocks<M>(cpu.memory, launch, &num_blocks)) return false;
    const schedule::TaskOrder order = task_order(cpu, num_blocks, launch.num_tokens);
    const std::uint64_t num_tasks = schedule::num_tasks(order);
    Scratch* scratch = &cpu.compute_scratch[unit];
    for (;;) {
        std::uint64_t ticket = 0;
        protocol::take_ticket<M>(cpu.memory, &ticket);
        if (ticket >= num_tasks) break;
        const schedule::Task task = schedule::task_at(order, ticket);
        if (!run_task<M>(cpu, launch, task, scratch, &times)) return false;
        times.last_work_ns = M::clock_ns();
    }
    times.end_ns = M::clock_ns();
    if (cpu.memory.plan.combines_by_signals()) protocol::leave_role2<M>(cpu.memory);
    return true;
}

}  // namespace gcmoe::cpu
