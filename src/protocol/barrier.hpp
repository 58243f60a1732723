// Barriers inside one role's own grid. No barrier of this project spans two roles or two ranks.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// Role 1's units wait for each other; `phase` counts the barriers of this launch from 0.
// Writer: each unit adds 1 (acquire-release). Reader: all units. The counter never goes back: with
// D units and P barriers a launch it stands at launches * P * D when the launch begins.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool role1_barrier(const layout::RankMemory& memory, const Launch& launch,
                                          std::uint32_t phase, std::uint32_t phases) {
    const std::uint64_t units = memory.plan.dispatch_units;
    const std::uint64_t target = (launch.launches * phases + phase + 1) * units;
    std::uint64_t* word = &memory.words()->role1_arrived;
    M::add_acq_rel(word, std::uint64_t{1});
    if (!keeps<M>(Rule::kRankBarrier)) return true;
    const WaitSite site{.signal = Signal::kRoleBarrier, .expected = target, .behind_counts = true};
    return wait_for<M, M>(memory, launch, site, word, [target](std::uint64_t value) {
        return value >= target ? Seen::kReady : Seen::kNotYet;
    });
}

// A unit of role 1 has pulled its last row.
template <SignalMemory M>
GCMOE_HD void leave_role1(const layout::RankMemory& memory) {
    M::add_release(&memory.words()->role1_left, std::uint64_t{1});
}

// Every unit of role 1 has left this launch: overlap off, before role 2 starts; and the end of a
// role 3 that the stream does not order behind role 1.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_role1_left(const layout::RankMemory& memory,
                                            const Launch& launch) {
    const std::uint64_t target = (launch.launches + 1) * memory.plan.dispatch_units;
    const WaitSite site{.signal = Signal::kOverlapOff, .expected = target, .behind_counts = true};
    return wait_for<M, M>(
        memory, launch, site, &memory.words()->role1_left,
        [target](std::uint64_t value) { return value >= target ? Seen::kReady : Seen::kNotYet; });
}

// A unit of role 2 has ended: it reads no word of this launch any more, and all that it stored is
// released. Callers: only with combines_by_signals; otherwise the stream orders role 3 after
// role 2.
template <SignalMemory M>
GCMOE_HD void leave_role2(const layout::RankMemory& memory) {
    M::add_release(&memory.words()->role2_left, std::uint64_t{1});
}

// Role 3 beside role 2: every unit of role 2 has left this launch.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_role2_left(const layout::RankMemory& memory,
                                            const Launch& launch) {
    const std::uint64_t target = (launch.launches + 1) * memory.plan.compute_units;
    const WaitSite site{.signal = Signal::kRole2Left, .expected = target, .behind_counts = true};
    return wait_for<M, M>(
        memory, launch, site, &memory.words()->role2_left,
        [target](std::uint64_t value) { return value >= target ? Seen::kReady : Seen::kNotYet; });
}

// Role 3 before its first sum: the rank's shared rows are stored. On role 2's units the stream has
// seen to it, else they wait for role 2's end (R35).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_shared_rows(const layout::RankMemory& memory,
                                             const Launch& launch) {
    const bool behind = memory.plan.combines_by_signals() && memory.shared_chunks != 0;
    if (!behind || !keeps<M>(Rule::kSharedRowsBeforeSum)) return true;
    return wait_role2_left<M>(memory, launch);
}

}  // namespace gcmoe::protocol
