// The one wait function: when it ends, what it leaves behind, whom it tells.
#include "protocol/wait.hpp"

#include <gtest/gtest.h>

#include "protocol/hand_memory.hpp"

namespace gcmoe::protocol {
namespace {

using test::hand_launch;
using test::HandMemory;
using test::HandSignals;

constexpr auto kCorruptWord = static_cast<std::uint32_t>(StallCause::kCorrupt);
constexpr auto kDeadlineWord = static_cast<std::uint32_t>(StallCause::kDeadline);
constexpr auto kPeerFaultWord = static_cast<std::uint32_t>(StallCause::kPeerFault);
constexpr auto kDoneWord = static_cast<std::uint32_t>(Signal::kDone);

class Wait : public testing::Test {
  protected:
    void SetUp() override { HandSignals::reset(); }
    void TearDown() override { HandSignals::reset(); }

    // Rank 1 of three waits until word_ is `target`, in the way of ring counters.
    bool wait(std::uint32_t target, const Launch& launch = hand_launch(5)) {
        return wait_for<HandSignals, HandSignals>(
            memory_.rank(1), launch, site_, &word_,
            [target](std::uint32_t value) { return judge_counter<HandSignals>(value, target); },
            &seen_);
    }

    HandMemory memory_{3};
    WaitSite site_{
        .signal = Signal::kDone, .expected = 0xABCDEF, .peer = 2, .expert = 4, .block = 9};
    std::uint32_t word_ = 7;
    std::uint32_t seen_ = 0;
};

TEST_F(Wait, ReadyAtOnce) {
    EXPECT_TRUE(wait(7));
    EXPECT_EQ(seen_, 7U);
    EXPECT_EQ(HandSignals::now_ns, 1U) << "nobody looks at the clock";
    EXPECT_EQ(memory_.report(1).cause, StallCause::kNone);
}

TEST_F(Wait, ReadyLater) {
    HandSignals::on_pause = [this](std::uint32_t polls) { word_ = polls < 9 ? 7 : 8; };
    EXPECT_TRUE(wait(8));
    EXPECT_EQ(seen_, 8U);
}

TEST_F(Wait, TheAcquireDecides) {
    // Between the poll and the acquire the word moves on: what the poll saw is no longer true.
    HandSignals::before_acquire = [this] { word_ = 6; };
    HandSignals::on_pause = [this](std::uint32_t polls) {
        HandSignals::before_acquire = nullptr;
        if (polls == 2) word_ = 7;
    };
    EXPECT_TRUE(wait(7));
    EXPECT_EQ(seen_, 7U);
}

TEST_F(Wait, DeadlineFillsTheReport) {
    EXPECT_FALSE(wait(8));
    const StallReport& report = memory_.report(1);
    EXPECT_EQ(report.cause, StallCause::kDeadline);
    EXPECT_EQ(report.role, Role::kCompute);
    EXPECT_EQ(report.signal, Signal::kDone);
    EXPECT_EQ(report.rank, 1);
    EXPECT_EQ(report.unit, 2);
    EXPECT_EQ(report.peer, 2);
    EXPECT_EQ(report.expert, 4);
    EXPECT_EQ(report.block, 9);
    EXPECT_EQ(report.expected, 0xABCDEFU);
    EXPECT_EQ(report.seen, 7U);
    EXPECT_EQ(report.generation, 5U);
    EXPECT_EQ(report.session, 1U);
    EXPECT_EQ(report.waited_us, 11U);
    for (const int rank : {0, 1, 2}) {
        EXPECT_EQ(memory_.fault(1, rank), fault_word(1, kDeadlineWord, kDoneWord, 2)) << rank;
        EXPECT_EQ(memory_.fault(0, rank), 0U) << rank;
    }
}

// Who waits for role 1 leaves the report to role 1, which knows the peer.
TEST_F(Wait, BehindCountsLastsAnEighthLonger) {
    site_.behind_counts = true;
    Launch launch = hand_launch(5);
    launch.limit_ns = 80000;
    EXPECT_FALSE(wait(8, launch));
    EXPECT_EQ(memory_.report(1).waited_us, 91U);
}

TEST_F(Wait, WithoutLimitForEver) {
    Launch launch = hand_launch(5);
    launch.limit_ns = 0;
    HandSignals::on_pause = [this](std::uint32_t polls) { word_ = polls < 100000 ? 7 : 8; };
    EXPECT_TRUE(wait(8, launch));
}

TEST_F(Wait, APeersFaultEndsItAndIsPassedOn) {
    HandSignals::on_pause = [this](std::uint32_t polls) {
        if (polls == 9) memory_.fault(0, 1) = fault_word(1, kDeadlineWord, kDoneWord, 2);
    };
    EXPECT_FALSE(wait(8));
    const StallReport& report = memory_.report(1);
    EXPECT_EQ(report.cause, StallCause::kPeerFault);
    EXPECT_EQ(report.signal, Signal::kFault);
    EXPECT_EQ(report.peer, 0);
    EXPECT_EQ(report.seen, memory_.fault(0, 1));
    EXPECT_EQ(fault_cause_of(memory_.fault(1, 2)), kPeerFaultWord);
    EXPECT_EQ(fault_culprit_of(memory_.fault(1, 2)), 0);
}

// Rank 0 has only passed on what rank 2 began.
TEST_F(Wait, TheReportNamesWhoGaveUpFirst) {
    memory_.fault(0, 1) =
        fault_word(1, kPeerFaultWord, static_cast<std::uint32_t>(Signal::kFault), 2);
    EXPECT_FALSE(wait(8));
    EXPECT_EQ(memory_.report(1).cause, StallCause::kPeerFault);
    EXPECT_EQ(memory_.report(1).peer, 2);
}

TEST_F(Wait, AFaultOfAnOldSessionIsIgnored) {
    memory_.fault(0, 1) = fault_word(1, kDeadlineWord, kDoneWord, 2);
    HandSignals::on_pause = [this](std::uint32_t polls) { word_ = polls < 20 ? 7 : 8; };
    EXPECT_TRUE(wait(8, hand_launch(5, 2)));
    std::uint64_t word = 0;
    EXPECT_EQ(find_fault<HandSignals>(memory_.rank(1), 2, &word), -1);
    EXPECT_EQ(find_fault<HandSignals>(memory_.rank(1), 1, &word), 0);
}

TEST_F(Wait, BeyondTheTargetIsCorrupt) {
    EXPECT_FALSE(wait(6));
    EXPECT_EQ(memory_.report(1).cause, StallCause::kCorrupt);
    EXPECT_EQ(memory_.report(1).seen, 7U);
    EXPECT_EQ(memory_.report(1).waited_us, 0U);
    EXPECT_EQ(fault_cause_of(memory_.fault(1, 0)), kCorruptWord);
}

TEST_F(Wait, OnlyTheFirstWaiterReports) {
    EXPECT_FALSE(wait(8));
    const StallReport first = memory_.report(1);
    site_.signal = Signal::kNumBlocks;
    site_.peer = 0;
    EXPECT_FALSE(wait(6));
    EXPECT_EQ(memory_.report(1).signal, first.signal);
    EXPECT_EQ(memory_.report(1).peer, first.peer);
    EXPECT_EQ(memory_.report(1).cause, first.cause);
    EXPECT_EQ(memory_.fault(1, 0), fault_word(1, kDeadlineWord, kDoneWord, 2));
}

TEST_F(Wait, TheOwnFaultEndsTheOtherUnitsQuietly) {
    memory_.fault(1, 1) = fault_word(1, kDeadlineWord, kDoneWord, 2);
    EXPECT_FALSE(wait(8));
    EXPECT_EQ(memory_.report(1).cause, StallCause::kNone) << "the unit that gave up reports";
}

TEST(JudgeCounter, EqualBelowBeyondAcrossTheWrap) {
    const auto judge = [](std::uint32_t value, std::uint32_t target) {
        return judge_counter<HandSignals>(value, target);
    };
    for (const std::uint32_t target : {0U, 1U, 64U, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFFU}) {
        EXPECT_EQ(judge(target, target), Seen::kReady);
        for (const std::uint32_t by : {1U, 64U, 0x7FFFFFFFU}) {
            EXPECT_EQ(judge(target - by, target), Seen::kNotYet) << target << " - " << by;
            EXPECT_EQ(judge(target + by, target), Seen::kCorrupt) << target << " + " << by;
        }
    }
}

}  // namespace
}  // namespace gcmoe::protocol
