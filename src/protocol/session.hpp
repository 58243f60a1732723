// Puts every signal into the state that a running system would have reached: at creation, near a
// wrap (for tests), and when the survivors of a fault start the next session. Host code; no role
// runs meanwhile.
#pragma once

#include <cstdint>
#include <vector>

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
constexpr std::uint64_t laps_before(std::uint64_t s0, std::uint64_t place,
                                    std::uint64_t ring_blocks) {
    return s0 / ring_blocks + (s0 % ring_blocks > place ? 1 : 0);
}

// Sets the own heap's words (counts, done, fault) and local state; call once per rank.
void init_workspace_signals(const layout::RankMemory& memory, const StartPoint& start);

// Sets one plan's signal block; `memory.plan` is that plan.
void init_plan_signals(const layout::RankMemory& memory, const StartPoint& start);

}  // namespace gcmoe::protocol
