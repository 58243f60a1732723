// Start and end of a launch: which generation this is, and how the state moves on.
#pragma once

#include <cstdint>

#include "protocol/barrier.hpp"

namespace gcmoe::protocol {

// Reads the launch's numbers. Ordering: role 3 of the launch before wrote them, and the stream
// orders it before this. Returns false if somebody has given up already: a queued launch ends at
// once.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool begin_launch(const layout::RankMemory& memory, Role role,
                                         std::uint32_t unit, std::uint64_t limit_ns,
                                         Launch* launch) {
    const layout::StateWords& state = *memory.state();
    const layout::PlanWords& words = *memory.words();
    launch->generation = state.generation + 1;
    launch->session = state.session;
    launch->num_tokens = state.num_tokens;
    launch->unit = unit;
    launch->role = role;
    launch->s0 = words.s0;
    launch->launches = words.launches;
    launch->limit_ns = limit_ns;
    std::uint64_t fault = 0;
    const int peer = find_fault<M>(memory, launch->session, &fault);
    if (peer >= 0) report_peer_fault<M>(memory, *launch, WaitSite{}, peer, fault, 0);
    return peer < 0;
}

// The lists of tasks that a launch dealt out.
struct DealtTasks {
    std::uint64_t tasks = 0;         // role 2's
    std::uint64_t shared_tasks = 0;  // of the list that role 4 shares with role 2; 0 without role 4
    bool has_role4 = false;
};

// The last unit of role 3 before it moves the state: no unit of roles 1 and 2 is left, or begins
// late and takes the next generation for its own (R34). Where the stream orders them before role 3,
// or they are role 3's own units, they have ended already.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_roles_left(const layout::RankMemory& memory,
                                            const Launch& launch) {
    if (!keeps<M>(Rule::kAdvanceAfterRole2)) return true;
    const bool follows = memory.plan.combine_on == layout::CombineOn::kFollow;
    const bool on_dispatch = memory.plan.combine_on == layout::CombineOn::kDispatch;
    if (follows && !wait_role1_left<M>(memory, launch)) return false;
    return (!follows && !on_dispatch) || wait_role2_left<M>(memory, launch);
}

// Role 3's end, one call per unit. The last unit moves the state to the next launch (R25):
// everything the launch counted has been counted, because roles 1 and 2 have ended and every peer's
// `done` has been seen. `num_blocks`, `dealt`: of this launch. Single words are plain: the next
// launch is ordered after. Returns false on a stall.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool end_launch(const layout::RankMemory& memory, const Launch& launch,
                                       std::uint32_t num_blocks, const DealtTasks& dealt) {
    layout::PlanWords& words = *memory.words();
    const std::uint64_t units = memory.plan.compute_units;
    const std::uint64_t combine_units = memory.plan.combine_units();
    const std::uint64_t arrived = M::add_acq_rel(&words.role3_arrived, std::uint64_t{1}) + 1;
    const std::uint64_t turn = keeps<M>(Rule::kAdvanceLast) ? combine_units : 1;
    if (arrived != launch.launches * combine_units + turn) return true;
    if (!wait_roles_left<M>(memory, launch)) return false;
    layout::StateWords& state = *memory.state();
    words.s0 = launch.s0 + num_blocks;
    words.launches = launch.launches + 1;
    words.ticket_base += dealt.tasks + units;  // each unit of role 2 takes one ticket too many
    if (dealt.has_role4) {
        words.shared_ticket_base += dealt.shared_tasks + units + memory.plan.dispatch_units;
    }
    state.generation = launch.generation;
    return true;
}

}  // namespace gcmoe::protocol
