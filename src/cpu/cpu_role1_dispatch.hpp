// Role 1 on the CPU: routing accounts, all-to-all pull of token rows into the ring.
//
// Waits for: count words of every source (system scope), l1_empty_count (role 2), its own units.
// Reads: own and peers' x, x_scale, topk_*; received counts and lists. Writes: peers' recv_count
// and recv_slot, block table, rows_left targets, ring x, scales, origins, `done` of peers without
// rows. Unit 0 keeps the accounts; all units pull, row r of a block by unit r mod units.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/cpu_launch.hpp"
#include "cpu/work_log.hpp"
#include "protocol/barrier.hpp"
#include "protocol/done.hpp"
#include "protocol/generation.hpp"
#include "protocol/receive_counters.hpp"
#include "protocol/ring.hpp"
#include "schedule/round_robin.hpp"

namespace gcmoe::cpu {

using protocol::Block;
using protocol::Launch;
using protocol::SignalMemory;

// The expert of a slot, or -1 if it is unused. The first id past the last expert is noted in the
// state: the slot counts as unused, the launch goes on everywhere, the host is told afterwards.
inline std::int64_t used_expert(const CpuLaunch& cpu, const Launch& launch, std::uint64_t slot) {
    const layout::RankMemory& memory = cpu.memory;
    const std::int64_t id = memory.heap.expert_id(memory.own_heap(), slot);
    if (id < cpu.shape->num_experts) return id < 0 ? -1 : id;
    layout::StateWords& state = *memory.state();
    if (state.bad_index_claimed == 0) {
        state.bad_index_claimed = std::uint64_t{launch.generation} + 1;
        state.bad_index_slot = slot;
        state.bad_index_id = id;
    }
    return -1;
}

// Counts the own slots per expert, writes the slot lists to the owners, then the count words.
template <SignalMemory M>
void publish_routing(const CpuLaunch& cpu, const Launch& launch, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const auto num_experts = static_cast<std::uint32_t>(cpu.shape->num_experts);
    const std::uint32_t per_rank = memory.heap.experts_per_rank;
    const std::uint64_t num_slots = std::uint64_t{launch.num_tokens} * memory.heap.topk;
    std::vector<std::uint32_t>& counts = scratch->counts;  // counts, then next free list entries
    counts.assign(2 * std::size_t{num_experts}, 0);
    for (std::uint64_t slot = 0; slot < num_slots; ++slot) {
        const std::int64_t expert = used_expert(cpu, launch, slot);
        if (expert >= 0) ++counts[static_cast<std::size_t>(expert)];
    }
    std::uint32_t* next = counts.data() + num_experts;
    for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
        next[expert] = expert % per_rank == 0 ? 0 : next[expert - 1] + counts[expert - 1];
    }
    const bool lists_first = protocol::keeps<M>(protocol::Rule::kSlotsBeforeCounts);
    const auto write_lists = [&] {
        for (std::uint64_t slot = 0; slot < num_slots; ++slot) {
            const std::int64_t expert = used_expert(cpu, launch, slot);
            if (expert < 0) continue;
            const auto owner = static_cast<std::uint32_t>(expert) / per_rank;
            protocol::slot_list<M>(memory, owner, memory.rank(),
                                   launch.generation)[next[expert]++] =
                static_cast<std::uint32_t>(slot);
        }
    };
    if (lists_first) write_lists();
    for (std::uint32_t i = 0; i < memory.heap.num_ranks; ++i) {
        const std::uint32_t owner = (memory.rank() + i) % memory.heap.num_ranks;
        protocol::publish_counts<M>(memory, launch, owner, counts.data() + owner * per_rank);
    }
    if (!lists_first) write_lists();
}

// Waits for every source's counts; notes statistics and how many rows each peer sent.
template <SignalMemory M>
[[nodiscard]] bool receive_routing(const CpuLaunch& cpu, const Launch& launch, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    std::vector<std::uint32_t>& rows_of = scratch->counts;
    rows_of.assign(memory.heap.num_ranks, 0);
    const std::uint32_t sources = protocol::keeps<M>(protocol::Rule::kWaitEverySource)
                                      ? memory.heap.num_ranks
                                      : memory.rank() + 1;
    for (std::uint32_t source = 0; source < sources; ++source) {
        if (!protocol::receive_counts<M>(memory, launch, source)) return false;
        for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
            rows_of[source] += memory.source_count(source)[expert];
        }
    }
    return true;
}

// Rows of a local expert in this launch, over all sources.
inline std::uint32_t rows_of_expert(const layout::RankMemory& memory, std::uint32_t expert) {
    std::uint32_t rows = 0;
    for (std::uint32_t source = 0; source < memory.heap.num_ranks; ++source) {
        rows += memory.source_count(source)[expert];
    }
    return rows;
}

// Moves the rows_left targets by the rows that each peer has sent.
inline void set_targets(const layout::RankMemory& memory, const Scratch& scratch) {
    for (std::uint32_t peer = 0; peer < memory.heap.num_ranks; ++peer) {
        protocol::set_rows_target(memory, peer, scratch.counts[peer]);
    }
}

// Block table, targets, number of blocks; `done` for peers without rows.
template <SignalMemory M>
void publish_blocks(const CpuLaunch& cpu, const Launch& launch, const Scratch& scratch) {
    const layout::RankMemory& memory = cpu.memory;
    auto* statistics = memory.at<std::uint64_t>(memory.local.statistics);
    std::uint32_t num_blocks = 0;
    for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
        const std::uint32_t rows = rows_of_expert(memory, expert);
        statistics[expert] += rows;
        memory.state()->rows_received += rows;
        for (std::uint32_t first = 0; first < rows; first += memory.plan.row_block) {
            const std::uint32_t in_block = std::min(rows - first, memory.plan.row_block);
            const Block block = protocol::block_at(memory, launch, num_blocks++);
            protocol::publish_block<M>(memory, launch, block, in_block, expert);
        }
    }
    memory.state()->blocks_received += num_blocks;
    if (protocol::keeps<M>(protocol::Rule::kTargetsBeforeBlocks)) set_targets(memory, scratch);
    protocol::publish_num_blocks<M>(memory, launch, num_blocks);
    for (std::uint32_t peer = 0; peer < memory.heap.num_ranks; ++peer) {
        if (scratch.counts[peer] == 0) protocol::publish_done_without_rows<M>(memory, launch, peer);
    }
}

// Unit 0's part: out with the own routing, in with everybody's, and the blocks that follow.
template <SignalMemory M>
[[nodiscard]] bool keep_accounts(const CpuLaunch& cpu, const Launch& launch, Scratch* scratch) {
    std::uint64_t work_ns = begin_work<M>(launch);
    publish_routing<M>(cpu, launch, scratch);
    end_work<M>(launch, work_ns, {.kind = trace::Kind::kRoute, .task = 0});
    if (!receive_routing<M>(cpu, launch, scratch)) return false;
    work_ns = begin_work<M>(launch);
    publish_blocks<M>(cpu, launch, *scratch);
    end_work<M>(launch, work_ns, {.kind = trace::Kind::kRoute, .task = 1});
    return true;
}

// Copies one row of a source into row `row` of a ring place: codes, scale words, origin.
void copy_row(const CpuLaunch& cpu, std::uint32_t source, std::uint32_t slot, std::uint32_t place,
              std::uint32_t row);

// Pulls this unit's rows of one block. `rows_walk` yields the expert's rows in order.
template <SignalMemory M, class Walk>
[[nodiscard]] bool pull_block(const CpuLaunch& cpu, const Launch& launch, const Block& block,
                              std::uint32_t expert, std::uint32_t rows, Walk* rows_walk) {
    const layout::RankMemory& memory = cpu.memory;
    UnitTimes& times = cpu.dispatch_times[launch.unit];
    const std::uint32_t units = memory.plan.dispatch_units;
    std::uint32_t copied = 0;
    std::uint64_t work_ns = 0;
    for (std::uint32_t row = 0; row < rows; ++row) {
        const schedule::SourceRow from = rows_walk->next();
        if (row % units != launch.unit) continue;
        if (row < units) {
            if (!protocol::TokenRing<M>::producer_acquire(memory, launch, block)) return false;
            work_ns = begin_work<M>(launch);
        }
        const std::uint64_t list_idx = memory.source_offset(from.source)[expert] + from.index;
        std::uint32_t slot = 0;
        if (!protocol::received_slot<M>(memory, launch, from.source, list_idx, &slot)) return false;
        const bool counted_first = !protocol::keeps<M>(protocol::Rule::kRowsBeforeFull);
        if (counted_first) protocol::TokenRing<M>::producer_commit(memory, block, 1);
        copy_row(cpu, from.source, slot, block.place, row);
        if (times.first_work_ns == 0) times.first_work_ns = M::clock_ns();
        if (!counted_first) ++copied;
    }
    const bool has_last_row = (rows - 1) % units == launch.unit;
    if (has_last_row && protocol::keeps<M>(protocol::Rule::kPadding)) {
        copied += memory.plan.row_block - rows;
    }
    if (copied != 0) protocol::TokenRing<M>::producer_commit(memory, block, copied);
    if (launch.unit < rows) {
        const WorkSite site{.kind = trace::Kind::kFill,
                            .block = block.index,
                            .expert = expert,
                            .task = launch.unit};
        end_work<M>(launch, work_ns, site);
    }
    M::pause(0);  // fewer cores than units: role 2 may start on this block now, not after the last
    times.last_work_ns = M::clock_ns();
    return true;
}

// Pulls this unit's rows of all blocks, in block order.
template <SignalMemory M>
[[nodiscard]] bool pull_rows(const CpuLaunch& cpu, const Launch& launch) {
    const layout::RankMemory& memory = cpu.memory;
    std::uint32_t block_idx = 0;
    for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
        const auto counts = [&memory, expert](std::uint32_t source) {
            return memory.source_count(source)[expert];
        };
        schedule::RoundRobin walk(counts, memory.heap.num_ranks);
        const std::uint32_t rows = rows_of_expert(memory, expert);
        for (std::uint32_t first = 0; first < rows; first += memory.plan.row_block) {
            const std::uint32_t in_block = std::min(rows - first, memory.plan.row_block);
            const Block block = protocol::block_at(memory, launch, block_idx++);
            if (!pull_block<M>(cpu, launch, block, expert, in_block, &walk)) return false;
        }
    }
    return true;
}

// One unit of role 1. Returns false if it left early (a stall is reported).
template <SignalMemory M>
bool role1_dispatch(const CpuLaunch& cpu, std::uint32_t unit) {
    UnitTimes& times = cpu.dispatch_times[unit];
    times = UnitTimes{};
    times.begin_ns = M::clock_ns();
    Launch launch;
    if (!protocol::begin_launch<M>(cpu.memory, Role::kDispatch, unit, cpu.wait_limit_ns, &launch)) {
        return false;
    }
    if (cpu.dispatch_logs != nullptr) launch.log = cpu.dispatch_logs + unit;
    if (unit == 0 && !keep_accounts<M>(cpu, launch, &cpu.dispatch_scratch[unit])) return false;
    if (!protocol::role1_barrier<M>(cpu.memory, launch, 0, 1)) return false;
    if (!pull_rows<M>(cpu, launch)) return false;
    if (unit == 0 && !protocol::keeps<M>(protocol::Rule::kTargetsBeforeBlocks)) {
        set_targets(cpu.memory, cpu.dispatch_scratch[unit]);
    }
    protocol::leave_role1<M>(cpu.memory);
    times.end_ns = M::clock_ns();
    return true;
}

}  // namespace gcmoe::cpu
