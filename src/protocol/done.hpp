// `done`: a rank tells every peer, in every generation, that all its combine rows for that peer are
// stored and all its pulls from that peer have ended. It replaces the closing barrier.
//
// rows_left[peer] grows by (rows of the peer) * n2 a launch; role 1 publishes the target before
// num_blocks.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// Role 1: moves the target of a peer by the task rows of this launch. Plain store:
// publish_num_blocks releases it (R7). Peers without rows get `done` later from
// publish_done_without_rows.
GCMOE_HD inline void set_rows_target(const layout::RankMemory& memory, std::uint32_t peer,
                                     std::uint32_t rows) {
    memory.rows_left_target()[peer] += rows * memory.plan.n2;
}

// Tells one peer: system-scope release, after all stores for it.
template <SignalMemory M>
GCMOE_HD void publish_done(const layout::RankMemory& memory, const Launch& launch,
                           std::uint32_t peer) {
    std::uint64_t* word =
        memory.heap.done_word(memory.peers.heap(static_cast<int>(peer)), memory.rank());
    M::Peer::store_release(word, done_word(launch.generation, launch.session));
}

// Role 1, when the targets are known: a peer that sent no rows is done with at once (R22).
template <SignalMemory M>
GCMOE_HD void publish_done_without_rows(const layout::RankMemory& memory, const Launch& launch,
                                        std::uint32_t peer) {
    if (keeps<M>(Rule::kDoneWithoutRows)) publish_done<M>(memory, launch, peer);
}

// Role 2, one thread after the task's stores for `peer` (R21): counts `rows` task rows off; who
// reaches the target publishes `done`. Acquire-release: the last one has seen the stores of all
// others.
template <SignalMemory M>
GCMOE_HD void count_off_rows(const layout::RankMemory& memory, const Launch& launch,
                             std::uint32_t peer, std::uint32_t rows) {
    const std::uint32_t after = M::add_acq_rel(memory.rows_left() + peer, rows) + rows;
    if (after == memory.rows_left_target()[peer]) publish_done<M>(memory, launch, peer);
}

// Role 3: waits for `done` of this generation or a later one from one peer (R23, R24).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_done(const layout::RankMemory& memory, const Launch& launch,
                                      std::uint32_t peer) {
    if (!keeps<M>(Rule::kWaitEveryDone)) return true;
    const WaitSite site{.signal = Signal::kDone,
                        .expected = done_word(launch.generation, launch.session),
                        .peer = static_cast<std::int32_t>(peer)};
    const auto judge = [&launch](std::uint64_t value) {
        const bool same_session = low_word(value) == launch.session || !keeps<M>(Rule::kSessionTag);
        if (!same_session) return Seen::kNotYet;
        const bool reached = keeps<M>(Rule::kDoneOrdered)
                                 ? generation_distance(generation_of(value), launch.generation) >= 0
                                 : generation_of(value) >= launch.generation;
        return reached ? Seen::kReady : Seen::kNotYet;
    };
    return wait_for<M, typename M::Peer>(memory, launch, site,
                                         memory.heap.done_word(memory.own_heap(), peer), judge);
}

}  // namespace gcmoe::protocol
