// Operator::reset after a stall: all ranks together, next session, same or new memory, right bits.
#include <gtest/gtest.h>

#include "op/readback.hpp"
#include "op/stall_fixture.hpp"
#include "protocol/words.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::StallLayer;

class Reset : public test::BothExecutors {
  protected:
    // Ranks 0 and 1 have given up on rank 2.
    void stall(StallLayer* layer) {
        layer->launch({0, 1});
        for (const int rank : {0, 1}) {
            EXPECT_EQ(layer->op(rank).synchronize().code(), Code::kStalled);
        }
    }
    // The first launch of a session has the long limit, so that a busy machine does no harm.
    const WaitLimits kShort{60.0, 0.3};
};

TEST_P(Reset, KeepAndMoveGiveRightBitsAgain) {
    StallLayer layer(group(), kShort);
    std::uint32_t session = 1;
    for (const bool move : {false, true, true, false}) {
        layer.expect_good_launch(10 + session);
        stall(&layer);
        const Status status = Operator::reset(layer.all(), move);
        ASSERT_TRUE(status.ok()) << status.message();
        ++session;
        for (Operator* op : layer.all()) {
            EXPECT_EQ(op->statistics().session, session);
            EXPECT_EQ(op->stall_report().cause, StallCause::kNone);
            EXPECT_TRUE(op->synchronize().ok());
        }
    }
    layer.expect_good_launch(20);
    EXPECT_EQ(layer.op(0).statistics().generation, 5U) << "stalled launches do not count";
}

TEST_P(Reset, WorksOnAHealthyWorkspace) {
    StallLayer layer(group(), kShort);
    for (const bool move : {false, true}) {
        layer.expect_good_launch(30);
        ASSERT_TRUE(Operator::reset(layer.all(), move).ok());
    }
    layer.expect_good_launch(31);
}

TEST_P(Reset, BeforeTheFirstLaunch) {
    StallLayer layer(group(), kShort);
    ASSERT_TRUE(Operator::reset(layer.all(), true).ok());
    layer.expect_good_launch(32);
}

// Ranks that ended different numbers of launches start again together.
TEST_P(Reset, LevelsGenerations) {
    StallLayer layer(group(), {60.0, 1.0});
    layer.expect_good_launch(33);
    layer.launch({0, 1, 2});
    layer.launch({0, 1});
    EXPECT_EQ(layer.op(0).synchronize().code(), Code::kStalled);
    EXPECT_EQ(layer.op(1).synchronize().code(), Code::kStalled);
    EXPECT_TRUE(layer.op(2).synchronize().ok());
    ASSERT_TRUE(Operator::reset(layer.all(), false).ok());
    for (Operator* op : layer.all()) EXPECT_EQ(op->statistics().generation, 2U);
    layer.expect_good_launch(34);
    for (Operator* op : layer.all()) EXPECT_EQ(op->statistics().generation, 3U);
}

TEST_P(Reset, StatisticsGoOn) {
    StallLayer layer(group(), kShort);
    layer.expect_good_launch(35);
    const auto before = layer.op(0).statistics();
    stall(&layer);
    ASSERT_TRUE(Operator::reset(layer.all(), false).ok());
    const auto after = layer.op(0).statistics();
    EXPECT_EQ(after.expert_rows, before.expert_rows);
    EXPECT_EQ(after.rows, before.rows);
    EXPECT_EQ(after.blocks, before.blocks);
}

// Every signal of the memory in use belongs to the new session, also after a move.
TEST_P(Reset, SignalsOfTheNewMemoryAreSet) {
    for (const bool move : {false, true}) {
        StallLayer layer(group(), kShort);
        layer.expect_good_launch(36);
        stall(&layer);
        const std::uint8_t* old_heap = readback(layer.op(0)).heap_base;
        ASSERT_TRUE(Operator::reset(layer.all(), move).ok());
        for (Operator* op : layer.all()) {
            const Readback memory = readback(*op);
            for (std::uint32_t source = 0; source < StallLayer::kRanks; ++source) {
                EXPECT_EQ(*memory.heap.fault_word(memory.heap_base, source), 0U);
                EXPECT_EQ(*memory.heap.done_word(memory.heap_base, source),
                          protocol::done_word(1, 2));
                EXPECT_EQ(*memory.heap.recv_count_word(memory.heap_base, 1, source, 3),
                          protocol::count_word(1, 2, 0));
            }
        }
        EXPECT_EQ(readback(layer.op(0)).heap_base != old_heap, move);
        layer.expect_good_launch(37);
    }
}

// A rank that wakes up late may still write words of the old session.
TEST_P(Reset, WordsOfAnOldSessionAreIgnored) {
    StallLayer layer(group(), {60.0, 1.0});
    layer.expect_good_launch(38);
    stall(&layer);
    ASSERT_TRUE(Operator::reset(layer.all(), false).ok());
    for (Operator* op : layer.all()) {
        const Readback memory = readback(*op);
        for (std::uint32_t source = 0; source < StallLayer::kRanks; ++source) {
            *memory.heap.fault_word(memory.heap_base, source) =
                protocol::fault_word(1, static_cast<std::uint32_t>(StallCause::kDeadline),
                                     static_cast<std::uint32_t>(Signal::kDone), 2);
            *memory.heap.done_word(memory.heap_base, source) = protocol::done_word(2, 1);
            *memory.heap.recv_count_word(memory.heap_base, 2, source, 1) =
                protocol::count_word(2, 1, 5);
        }
    }
    layer.expect_good_launch(39);
    layer.expect_good_launch(40);
}

TEST_P(Reset, IsRefusedWithoutEveryRank) {
    StallLayer layer(group(), kShort);
    layer.expect_good_launch(41);
    stall(&layer);
    auto all = layer.all();
    expect_refused(Operator::reset({}, true), Code::kBadInput, {"no operators"});
    expect_refused(Operator::reset({all[0], all[1]}, true), Code::kBadInput, {"2 of 3 ranks"});
    expect_refused(Operator::reset({all[0], all[1], all[1]}, false), Code::kBadInput,
                   {"rank 1", "twice"});
    expect_refused(Operator::reset({all[0], all[1], all[2], all[0]}, false), Code::kBadInput,
                   {"rank 0", "twice"});
    expect_refused(Operator::reset({all[0], nullptr, all[2]}, false), Code::kBadInput, {"null"});
    EXPECT_EQ(layer.op(0).launch({}).code(), Code::kBusy) << "a refused reset changes nothing";
    ASSERT_TRUE(Operator::reset({all[2], all[0], all[1]}, false).ok()) << "any order";
    layer.expect_good_launch(42);
}

TEST_P(Reset, IsRefusedOverTwoWorkspaces) {
    StallLayer one(group(), kShort);
    StallLayer other(group(), kShort);
    expect_refused(Operator::reset({&one.op(0), &one.op(1), &other.op(2)}, false), Code::kBadInput,
                   {"rank 2", "another workspace"});
}

GCMOE_ON_BOTH_EXECUTORS(Reset);

}  // namespace
}  // namespace gcmoe
