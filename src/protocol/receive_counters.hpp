// Counts and slot lists: what a source announces to the owners of experts, and how owners read it.
//
// Writer: role 1 of the source, one unit, for every owner and expert, also zero (R1). Reader: role
// 1 of the owner. Two halves by generation parity: a fast peer may write g + 1 while g is still
// read; it cannot reach g + 2 before this rank has published g + 1, because every rank waits for
// every source (R4).
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// Half of recv_count and recv_slot that a generation uses.
template <class M>
GCMOE_HD std::uint32_t receive_half(std::uint32_t generation) {
    return keeps<M>(Rule::kCountHalves) ? generation & 1 : 0;
}

// The own slot list in an owner's memory: (max_tokens * topk) u32 = token * topk + slot, grouped by
// local expert. Plain stores go here before publish_counts.
template <class M>
GCMOE_HD std::uint32_t* slot_list(const layout::RankMemory& memory, std::uint32_t owner,
                                  std::uint32_t source, std::uint32_t generation) {
    return memory.heap.recv_slot_list(memory.peers.heap(static_cast<int>(owner)),
                                      receive_half<M>(generation), source);
}

// Publishes one count. Ordering: a system-scope release; the slot list for this owner has been
// stored before by this unit (R2; other threads of the unit: stores, then a barrier of the unit).
template <SignalMemory M>
GCMOE_HD void publish_count(const layout::RankMemory& memory, const Launch& launch,
                            std::uint32_t owner, std::uint32_t expert, std::uint32_t count) {
    if (count == 0 && !keeps<M>(Rule::kPublishZeroCounts)) return;
    std::uint8_t* heap = memory.peers.heap(static_cast<int>(owner));
    std::uint64_t* word = memory.heap.recv_count_word(heap, receive_half<M>(launch.generation),
                                                      memory.rank(), expert);
    M::Peer::store_release(word, count_word(launch.generation, launch.session, count));
}

// Publishes counts[experts_per_rank] to one owner.
template <SignalMemory M>
GCMOE_HD void publish_counts(const layout::RankMemory& memory, const Launch& launch,
                             std::uint32_t owner, const std::uint32_t* counts) {
    for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
        publish_count<M>(memory, launch, owner, expert, counts[expert]);
    }
}

// One look at a count word: an older generation or another session is not there yet; a later
// generation cannot be, so it is corruption.
template <class M>
GCMOE_HD Seen judge_count(std::uint64_t word, std::uint32_t generation, std::uint32_t session) {
    if (!keeps<M>(Rule::kCountGeneration)) return Seen::kReady;
    const bool same_session = session8_of(word) == (session & 0xFF) || !keeps<M>(Rule::kSessionTag);
    if (!same_session) return Seen::kNotYet;
    if (generation_of(word) == generation) return Seen::kReady;
    return generation_distance(generation_of(word), generation) > 0 ? Seen::kCorrupt
                                                                    : Seen::kNotYet;
}

// Waits for the count word of one source and local expert.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_count(const layout::RankMemory& memory, const Launch& launch,
                                       std::uint32_t source, std::uint32_t expert,
                                       std::uint32_t* count) {
    std::uint64_t* word = memory.heap.recv_count_word(
        memory.own_heap(), receive_half<M>(launch.generation), source, expert);
    const WaitSite site{.signal = Signal::kRecvCount,
                        .expected = count_word(launch.generation, launch.session, 0),
                        .peer = static_cast<std::int32_t>(source),
                        .expert = static_cast<std::int32_t>(expert)};
    std::uint64_t seen = 0;
    const auto judge = [&launch](std::uint64_t value) {
        return judge_count<M>(value, launch.generation, launch.session);
    };
    if (!wait_for<M, typename M::Peer>(memory, launch, site, word, judge, &seen)) return false;
    *count = count_of(seen);
    return true;
}

// `total` entries of a source's list, up to and with those of `expert`, fit the list. Returns false
// and reports when they do not (R6).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool check_entries(const layout::RankMemory& memory, const Launch& launch,
                                          std::uint32_t source, std::uint32_t expert,
                                          std::uint64_t total) {
    if (total <= memory.heap.max_slots() || !keeps<M>(Rule::kCheckReceived)) return true;
    const WaitSite site{.signal = Signal::kRecvCount,
                        .expected = memory.heap.max_slots(),
                        .peer = static_cast<std::int32_t>(source),
                        .expert = static_cast<std::int32_t>(expert)};
    report_stall<M>(memory, launch, site, StallCause::kCorrupt, total, 0);
    return false;
}

// From one source's counts to where each expert's entries start in its list. Returns false and
// reports when the counts do not fit the list (R6).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool locate_entries(const layout::RankMemory& memory, const Launch& launch,
                                           std::uint32_t source, const std::uint32_t* counts,
                                           std::uint32_t* offsets) {
    std::uint64_t total = 0;
    for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
        offsets[expert] = static_cast<std::uint32_t>(total);
        total += counts[expert];
        if (!check_entries<M>(memory, launch, source, expert, total)) return false;
    }
    return true;
}

// Waits for all words of one source and writes its counts and list offsets to local memory. Returns
// false on a stall and when the counts do not fit.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool receive_counts(const layout::RankMemory& memory, const Launch& launch,
                                           std::uint32_t source) {
    std::uint32_t* counts = memory.source_count(source);
    for (std::uint32_t expert = 0; expert < memory.heap.experts_per_rank; ++expert) {
        if (!wait_count<M>(memory, launch, source, expert, &counts[expert])) return false;
    }
    return locate_entries<M>(memory, launch, source, counts, memory.source_offset(source));
}

// An entry of a source's list: token * topk + slot. Returns false and reports if it is not a slot
// of that rank (R6).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool check_slot(const layout::RankMemory& memory, const Launch& launch,
                                       std::uint32_t source, std::uint32_t slot) {
    if (slot < memory.heap.max_slots() || !keeps<M>(Rule::kCheckReceived)) return true;
    const WaitSite site{.signal = Signal::kRecvSlot,
                        .expected = memory.heap.max_slots(),
                        .peer = static_cast<std::int32_t>(source)};
    report_stall<M>(memory, launch, site, StallCause::kCorrupt, slot, 0);
    return false;
}

// Entry `list_idx` of a source's list, checked. Ordering: after receive_counts and role 1's
// barrier.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool received_slot(const layout::RankMemory& memory, const Launch& launch,
                                          std::uint32_t source, std::uint64_t list_idx,
                                          std::uint32_t* slot) {
    *slot = slot_list<M>(memory, memory.rank(), source, launch.generation)[list_idx];
    return check_slot<M>(memory, launch, source, *slot);
}

}  // namespace gcmoe::protocol
