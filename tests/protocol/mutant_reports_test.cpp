// Rules about what a rank does with values that a working peer would not send, with words of an old
// session and with faults: the wrong values are planted.
#include <gtest/gtest.h>

#include "protocol/mutant_layer.hpp"
#include "protocol/receive_counters.hpp"

namespace gcmoe {
namespace {

using layout::RankMemory;
using protocol::Rule;
using test::mutant_control;
using test::MutantLayer;
using test::Outcome;
using test::Prepared;
using test::run_mutant;
using test::Scenario;

constexpr std::uint64_t kSeeds = 8;
constexpr std::uint64_t kMostSeeds = 100;

bool caught(const Prepared& prepared, Rule rule) {
    for (std::uint64_t seed = 0; seed < kMostSeeds; ++seed) {
        if (!run_mutant(prepared, rule, seed).good()) return true;
    }
    return false;
}

// Rank 0 lies to rank 1: when it has stored the count word of the owner's last expert in launch 2,
// `lie` changes what stands in the owner's memory.
Scenario with_lie(const std::function<void(const RankMemory& owner, std::uint32_t half)>& lie) {
    Scenario scenario;
    scenario.arm = [lie](MutantLayer& layer) {
        const RankMemory owner = layer.memory(1);
        const std::uint32_t half = 2;
        const std::uint64_t* last =
            owner.heap.recv_count_word(owner.own_heap(), half, 0, owner.heap.experts_per_rank - 1);
        mutant_control().after_write = [=](const void* word) {
            if (word == last && protocol::generation_of(*last) == 2) lie(owner, half);
        };
    };
    return scenario;
}

// Kept: the owner names the liar and what was wrong, and both ranks leave. Removed: nobody notices.
void expect_received_is_checked(const Scenario& scenario, Signal signal) {
    const Prepared prepared(scenario);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const Outcome kept = run_mutant(prepared, Rule::kCount, seed);
        EXPECT_EQ(kept.reports[1].cause, StallCause::kCorrupt) << kept.text();
        EXPECT_EQ(kept.reports[1].signal, signal) << kept.text();
        EXPECT_EQ(kept.reports[1].peer, 0) << kept.text();
        EXPECT_EQ(kept.reports[1].generation, 2U);
        EXPECT_EQ(kept.reports[0].cause, StallCause::kPeerFault) << kept.text();
        EXPECT_EQ(kept.reports[0].peer, 1) << kept.text();
        const Outcome removed = run_mutant(prepared, Rule::kCheckReceived, seed);
        EXPECT_FALSE(removed.has(StallCause::kCorrupt, signal)) << removed.text();
        EXPECT_FALSE(removed.good());
    }
}

// One slot more than a list holds. Without the check role 1 reads the next source's list.
TEST(Mutants, R6CheckReceivedCount) {
    expect_received_is_checked(with_lie([](const RankMemory& owner, std::uint32_t half) {
                                   const auto too_many =
                                       static_cast<std::uint32_t>(owner.heap.max_slots()) + 1;
                                   *owner.heap.recv_count_word(owner.own_heap(), half, 0, 0) =
                                       protocol::count_word(2, 1, too_many);
                               }),
                               Signal::kRecvCount);
}

// A slot past the last token. Without the check its row is read from, and its result stored to,
// bytes that are not rows (still inside the heap, so that this test may do it).
TEST(Mutants, R6CheckReceivedSlot) {
    expect_received_is_checked(with_lie([](const RankMemory& owner, std::uint32_t half) {
                                   owner.heap.recv_slot_list(owner.own_heap(), half, 0)[0] =
                                       static_cast<std::uint32_t>(owner.heap.max_slots());
                               }),
                               Signal::kRecvSlot);
}

// Rank 0 waits for rank 1 in vain and gives up; then rank 1 begins.
TEST(Mutants, R27FaultToPeers) {
    const Prepared prepared{Scenario{}};
    for (const bool kept : {true, false}) {
        mutant_control().set(kept ? Rule::kCount : Rule::kFaultToPeers, 0);
        MutantLayer layer(prepared, 0);
        layer.queue(0);
        EXPECT_FALSE(layer.finish());
        EXPECT_EQ(layer.op(0).stall_report().cause, StallCause::kDeadline);
        EXPECT_EQ(layer.op(0).stall_report().signal, Signal::kRecvCount);
        EXPECT_EQ(layer.op(0).stall_report().peer, 1);
        layer.queue(1);
        EXPECT_FALSE(layer.finish());
        const StallReport report = layer.op(1).stall_report();
        if (kept) {
            EXPECT_EQ(report.cause, StallCause::kPeerFault) << describe(report);
            EXPECT_EQ(report.peer, 0) << describe(report);
        } else {
            EXPECT_EQ(report.cause, StallCause::kDeadline) << describe(report);
        }
    }
}

constexpr std::uint32_t kSession = 7;

// Kept, a word of the session before changes nothing; removed, it is taken for one of this session.
void expect_old_words_are_ignored(const std::function<void(const RankMemory& memory)>& plant) {
    Scenario scenario;
    scenario.start.session = kSession;
    scenario.before = [plant](int, int, const RankMemory& memory) { plant(memory); };
    const Prepared prepared(scenario);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const Outcome kept = run_mutant(prepared, Rule::kCount, seed);
        EXPECT_TRUE(kept.good()) << kept.text();
    }
    EXPECT_TRUE(caught(prepared, Rule::kSessionTag));
}

// A rank that was stopped in the old session wakes up and stores what it had in hand.
TEST(Mutants, R28SessionTagOfDone) {
    expect_old_words_are_ignored([](const RankMemory& memory) {
        for (std::uint32_t peer = 0; peer < memory.heap.num_ranks; ++peer) {
            *memory.heap.done_word(memory.own_heap(), peer) =
                protocol::done_word(memory.state()->generation + 1, kSession - 1);
        }
    });
}

TEST(Mutants, R28SessionTagOfCounts) {
    expect_old_words_are_ignored([](const RankMemory& memory) {
        const std::uint32_t generation = memory.state()->generation + 1;
        for (std::uint32_t peer = 0; peer < memory.heap.num_ranks; ++peer) {
            std::uint64_t* word =
                memory.heap.recv_count_word(memory.own_heap(), generation, peer, 0);
            const bool peer_was_faster = protocol::generation_of(*word) == generation;
            if (!peer_was_faster) *word = protocol::count_word(generation, kSession - 1, 0);
        }
    });
}

TEST(Mutants, R28SessionTagOfFault) {
    expect_old_words_are_ignored([](const RankMemory& memory) {
        *memory.heap.fault_word(memory.own_heap(), 1) = protocol::fault_word(kSession - 1, 1, 1, 0);
    });
}

// A counter that somebody moved too far: with the rule it is named at once, without it a wait runs
// out of time.
TEST(Mutants, R29BeyondIsCorrupt) {
    Scenario scenario;
    scenario.before = [](int rank, int launch, const RankMemory& memory) {
        if (rank == 0 && launch == 1) *memory.l1_full_count(0) += 2 * memory.plan.row_block;
    };
    const Prepared prepared(scenario);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const Outcome kept = run_mutant(prepared, Rule::kCount, seed);
        EXPECT_TRUE(kept.has(StallCause::kCorrupt, Signal::kL1Full)) << kept.text();
        EXPECT_EQ(kept.reports[0].waited_us, 0U);
        const Outcome removed = run_mutant(prepared, Rule::kBeyondIsCorrupt, seed);
        EXPECT_FALSE(removed.has(StallCause::kCorrupt, Signal::kL1Full)) << removed.text();
        EXPECT_TRUE(removed.stalled());
    }
}

}  // namespace
}  // namespace gcmoe
