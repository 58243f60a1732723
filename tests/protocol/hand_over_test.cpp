// done, block table, barrier and ring verbs, moved by hand.
#include <gtest/gtest.h>

#include "protocol/barrier.hpp"
#include "protocol/done.hpp"
#include "protocol/hand_memory.hpp"
#include "protocol/ring.hpp"

namespace gcmoe::protocol {
namespace {

using test::hand_launch;
using test::HandMemory;
using test::HandSignals;

std::uint64_t done_at(const HandMemory& memory, int owner, std::uint32_t source) {
    const layout::RankMemory& own = memory.rank(owner);
    return *own.heap.done_word(own.own_heap(), source);
}

TEST(Done, PublishedWhenTheLastRowIsCountedOff) {
    constexpr std::uint32_t kNearWrap = 0xFFFFFFFCU;
    HandSignals::reset();
    const HandMemory memory(3, {.rows_left = kNearWrap});
    const layout::RankMemory& own = memory.rank(0);
    const Launch launch = hand_launch(1);
    set_rows_target(own, 2, 6);  // n2 = 2 tasks see each row
    EXPECT_EQ(own.rows_left_target()[2], kNearWrap + 12);
    for (const std::uint32_t rows : {6U, 5U}) {
        count_off_rows<HandSignals>(own, launch, 2, rows);
        EXPECT_EQ(done_at(memory, 2, 0), done_word(0, 1));
    }
    count_off_rows<HandSignals>(own, launch, 2, 1);
    EXPECT_EQ(done_at(memory, 2, 0), done_word(1, 1));
    EXPECT_EQ(done_at(memory, 1, 0), done_word(0, 1)) << "only the peer that is done with";
}

TEST(Done, OrderedAndOfThisSession) {
    constexpr std::uint32_t kLast = 0xFFFFFFFFU;
    HandSignals::reset();
    const HandMemory memory(2);
    const layout::RankMemory& own = memory.rank(0);
    std::uint64_t* word = own.heap.done_word(own.own_heap(), 1);
    const auto arrives = [&](std::uint64_t value, std::uint32_t generation) {
        *own.at<StallReport>(own.local.stall_report) = StallReport{};
        own.state()->stall_claimed = 0;
        *own.heap.fault_word(own.own_heap(), 0) = 0;
        *word = value;
        return wait_done<HandSignals>(own, hand_launch(generation, 6), 1);
    };
    EXPECT_TRUE(arrives(done_word(5, 6), 5));
    EXPECT_TRUE(arrives(done_word(6, 6), 5)) << "a later one says as much";
    EXPECT_TRUE(arrives(done_word(0, 6), kLast));
    EXPECT_FALSE(arrives(done_word(kLast, 6), 0));
    EXPECT_FALSE(arrives(done_word(5, 7), 5)) << "another session";
    EXPECT_FALSE(arrives(done_word(4, 6), 5));
    EXPECT_EQ(memory.report(0).signal, Signal::kDone);
    EXPECT_EQ(memory.report(0).peer, 1);
}

TEST(BlockList, PlaceAndLap) {
    const HandMemory memory(1);
    Launch launch;
    for (const std::uint64_t s0 :
         {std::uint64_t{0}, std::uint64_t{13}, (std::uint64_t{4} << 32) - 3}) {
        launch.s0 = s0;
        for (std::uint32_t index = 0; index < 12; ++index) {
            const Block block = block_at(memory.rank(0), launch, index);
            EXPECT_EQ(block.sequence, s0 + index);
            EXPECT_EQ(block.place, (s0 + index) % HandMemory::kRingBlocks);
            EXPECT_EQ(block.lap,
                      static_cast<std::uint32_t>((s0 + index) / HandMemory::kRingBlocks));
        }
    }
}

TEST(BlockList, AnEntryOfAnotherLaunchIsNotRead) {
    HandSignals::reset();
    const HandMemory memory(1);
    const layout::RankMemory& own = memory.rank(0);
    const Launch launch = hand_launch(9, 2);
    const Block block = block_at(own, launch, 3);
    std::uint32_t rows = 0;
    std::uint32_t expert = 0;
    publish_block<HandSignals>(own, launch, block, 64, 2);
    EXPECT_TRUE(wait_block<HandSignals>(own, launch, block, &rows, &expert));
    EXPECT_EQ(rows, 64U);
    EXPECT_EQ(expert, 2U);
    EXPECT_FALSE(wait_block<HandSignals>(own, hand_launch(10, 2), block, &rows, &expert));
    EXPECT_EQ(memory.report(0).signal, Signal::kBlockTable);
    EXPECT_EQ(memory.report(0).block, 3);
    EXPECT_FALSE(wait_block<HandSignals>(own, hand_launch(9, 3), block, &rows, &expert));
}

TEST(Barrier, LastUnitOpensIt) {
    HandSignals::reset();
    const HandMemory memory(1);
    const layout::RankMemory& own = memory.rank(0);  // 2 dispatch units
    for (std::uint64_t launches = 0; launches < 3; ++launches) {
        Launch launch = hand_launch(static_cast<std::uint32_t>(launches) + 1);
        launch.launches = launches;
        own.words()->role1_arrived = launches * 2;
        HandSignals::on_pause = [&](std::uint32_t polls) {
            if (polls == 5) ++own.words()->role1_arrived;
        };
        EXPECT_TRUE(role1_barrier<HandSignals>(own, launch, 0, 1));
        EXPECT_EQ(own.words()->role1_arrived, (launches + 1) * 2);
    }
    HandSignals::reset();
    EXPECT_FALSE(role1_barrier<HandSignals>(own, hand_launch(4), 3, 4)) << "nobody else comes";
    EXPECT_EQ(memory.report(0).signal, Signal::kRoleBarrier);
}

// Both hand-overs of one place through three laps, from a start near the wrap of the laps.
TEST(Ring, VerbsAgreeWithTheCounters) {
    HandSignals::reset();
    for (const std::uint64_t s0 : {std::uint64_t{0}, (std::uint64_t{4} << 32) - 4}) {
        const HandMemory memory(1, {.s0 = s0});
        const layout::RankMemory& own = memory.rank(0);
        Launch launch = hand_launch(1);
        launch.s0 = s0;
        for (std::uint32_t index = 2; index < 12; index += HandMemory::kRingBlocks) {
            const Block block = block_at(own, launch, index);
            ASSERT_TRUE(TokenRing<HandSignals>::producer_acquire(own, launch, block));
            TokenRing<HandSignals>::producer_commit(own, block, own.plan.row_block);
            for (std::uint32_t task = 0; task < own.plan.n1; ++task) {
                ASSERT_TRUE(TokenRing<HandSignals>::consumer_wait(own, launch, block));
                TokenRing<HandSignals>::consumer_release(own, block);
                ASSERT_TRUE(ActivationRing<HandSignals>::producer_acquire(own, launch, block));
                ActivationRing<HandSignals>::producer_commit(own, block, task);
            }
            for (std::uint32_t task = 0; task < own.plan.n2; ++task) {
                for (std::uint32_t chunk = 0; chunk < own.inter_chunks; ++chunk) {
                    ASSERT_TRUE(
                        ActivationRing<HandSignals>::consumer_wait(own, launch, block, chunk));
                }
                ActivationRing<HandSignals>::consumer_release(own, block);
            }
        }
        const Block next = block_at(own, launch, 14);
        EXPECT_TRUE(TokenRing<HandSignals>::producer_acquire(own, launch, next));
        EXPECT_FALSE(TokenRing<HandSignals>::consumer_wait(own, launch, next)) << "not filled";
    }
}

}  // namespace
}  // namespace gcmoe::protocol
