// Puts every signal into the state that a running system would have reached: at creation, near a
// wrap (for tests), and when the survivors of a fault start the next session. No role runs
// meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "base/host_device.hpp"
#include "gcmoe/stall_report.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/words.hpp"

namespace gcmoe::protocol {

// Where a workspace starts. Zeroes: a new one.
struct StartPoint {
    std::uint32_t generation = 0;  // last finished generation
    std::uint32_t session = 1;
    std::uint64_t s0 = 0;  // sequence number of the next block of every plan
    std::uint32_t rows_left = 0;
    std::uint64_t ticket = 0;
};

// How often ring place `place` was filled before block `s0`.
GCMOE_HD constexpr std::uint64_t laps_before(std::uint64_t s0, std::uint64_t place,
                                             std::uint64_t ring_blocks) {
    return s0 / ring_blocks + (s0 % ring_blocks > place ? 1 : 0);
}

// Sets the own heap's words (counts, done, fault) and local state; call once per rank.
GCMOE_HD inline void init_workspace_signals(const layout::RankMemory& memory,
                                            const StartPoint& start) {
    std::uint8_t* heap = memory.own_heap();
    for (std::uint32_t back = 0; back < 2; ++back) {
        const std::uint32_t generation = start.generation - back;
        for (std::uint32_t source = 0; source < memory.heap.num_ranks; ++source) {
            for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
                *memory.heap.recv_count_word(heap, generation, source, expert) =
                    count_word(generation, start.session, 0);
            }
        }
    }
    for (std::uint32_t source = 0; source < memory.heap.num_ranks; ++source) {
        *memory.heap.done_word(heap, source) = done_word(start.generation, start.session);
        *memory.heap.fault_word(heap, source) = 0;
        memory.rows_left()[source] = start.rows_left;
        memory.rows_left_target()[source] = start.rows_left;
    }
    *memory.num_blocks() = num_blocks_word(start.generation, 0);
    layout::StateWords& state = *memory.state();
    const std::uint64_t rows = state.rows_received;
    const std::uint64_t blocks = state.blocks_received;
    state = layout::StateWords{};
    state.rows_received = rows;
    state.blocks_received = blocks;
    state.generation = start.generation;
    state.start_generation = start.generation;
    state.session = start.session;
    *memory.at<StallReport>(memory.local.stall_report) = StallReport{};
    for (std::uint32_t i = 0; memory.shared_chunks != 0 && i < memory.local.shared_blocks; ++i) {
        *memory.shared_ready(i) = start.generation * memory.shared_chunks;
    }
}

// Sets one plan's signal block; `memory.plan` is that plan.
GCMOE_HD inline void init_plan_signals(const layout::RankMemory& memory, const StartPoint& start) {
    const layout::PlanMemory& plan = memory.plan;
    const std::uint64_t all_bits =
        plan.n1 == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << plan.n1) - 1;
    for (std::uint32_t place = 0; place < plan.ring_blocks; ++place) {
        const auto laps =
            static_cast<std::uint32_t>(laps_before(start.s0, place, plan.ring_blocks));
        *memory.l1_full_count(place) = laps * plan.row_block;
        *memory.l1_empty_count(place) = laps * plan.n1;
        *memory.l2_full_mask(place) = (laps & 1) != 0 ? all_bits : 0;
        *memory.l2_empty_count(place) = laps * plan.n2;
    }
    layout::PlanWords& words = *memory.words();
    words = layout::PlanWords{};
    words.s0 = start.s0;
    words.ticket = start.ticket;
    words.ticket_base = start.ticket;
    words.shared_ticket = start.ticket;
    words.shared_ticket_base = start.ticket;
}

}  // namespace gcmoe::protocol
