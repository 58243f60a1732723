// One rank stays away: all others give up in bounded time, name it, and refuse further launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "op/stall_fixture.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::kSteadySeconds;
using test::StallLayer;

class Stall : public test::BothExecutors {};

TEST_P(Stall, EveryOtherRankGivesUpInTimeAndNamesTheMissingOne) {
    StallLayer layer(group());
    layer.expect_good_launch(1);
    const test::Stopwatch watch;
    layer.launch({0, 1});
    const Status zero = layer.op(0).synchronize();
    const Status one = layer.op(1).synchronize();
    EXPECT_GE(watch.seconds(), on_threads() ? kSteadySeconds : 0.0);
    EXPECT_LT(watch.seconds(), on_threads() ? kSteadySeconds + 1.0 : 0.5);
    expect_refused(zero, Code::kStalled, {"rank 0", "rank 2", "generation 2"});
    expect_refused(one, Code::kStalled, {"rank 1", "rank 2", "generation 2"});
    EXPECT_TRUE(layer.op(2).synchronize().ok()) << "it launched nothing";
    // One of the two found out by itself.
    const StallReport reports[2] = {layer.op(0).stall_report(), layer.op(1).stall_report()};
    int first = 0;
    for (int rank = 0; rank < 2; ++rank) {
        const StallReport& report = reports[rank];
        EXPECT_EQ(report.rank, rank);
        EXPECT_EQ(report.generation, 2U);
        EXPECT_EQ(report.session, 1U);
        if (report.cause != StallCause::kDeadline) {
            EXPECT_EQ(report.cause, StallCause::kPeerFault);
            EXPECT_EQ(report.peer, 1 - rank);
            continue;
        }
        ++first;
        EXPECT_EQ(report.peer, 2);
        EXPECT_GE(report.waited_us, 500000U);
        if (on_threads()) continue;  // a busy machine may look at another unit's clock first
        EXPECT_EQ(report.signal, Signal::kRecvCount);
        EXPECT_EQ(report.role, Role::kDispatch);
    }
    EXPECT_GE(first, 1);
}

TEST_P(Stall, LaterLaunchesAreBusyOnEveryRankThatGaveUp) {
    StallLayer layer(group());
    layer.expect_good_launch(2);
    layer.launch({0, 1});
    for (const int rank : {0, 1}) EXPECT_EQ(layer.op(rank).synchronize().code(), Code::kStalled);
    for (const int rank : {0, 1}) {
        expect_refused(layer.op(rank).launch({}), Code::kBusy,
                       {"'default'", "rank " + std::to_string(rank), "reset", "stalled"});
        EXPECT_EQ(layer.op(rank).synchronize().code(), Code::kStalled) << "still so";
    }
}

TEST_P(Stall, LaunchesQueuedBehindItEndAtOnce) {
    StallLayer layer(group());
    layer.expect_good_launch(3);
    const test::Stopwatch watch;
    layer.launch({0, 1}, 100);
    for (const int rank : {0, 1}) EXPECT_EQ(layer.op(rank).synchronize().code(), Code::kStalled);
    EXPECT_LT(watch.seconds(), kSteadySeconds + 1.0);
    EXPECT_EQ(layer.op(0).statistics().generation, 1U) << "none of them counts";
    EXPECT_EQ(layer.op(0).stall_report().generation, 2U) << "the report is the first one's";
}

TEST_P(Stall, LatecomerLeavesAtOnceToo) {
    StallLayer layer(group());
    layer.expect_good_launch(4);
    layer.launch({0, 1});
    for (const int rank : {0, 1}) EXPECT_EQ(layer.op(rank).synchronize().code(), Code::kStalled);
    const test::Stopwatch watch;
    layer.launch({2});
    expect_refused(layer.op(2).synchronize(), Code::kStalled,
                   {"rank 2", "gave up first", " of rank 2"});
    EXPECT_LT(watch.seconds(), kSteadySeconds);
    EXPECT_EQ(layer.op(2).stall_report().cause, StallCause::kPeerFault);
}

// The first of those that stay away is named.
TEST_P(Stall, AlsoWhenOnlyOneWaits) {
    StallLayer layer(group());
    layer.expect_good_launch(5);
    layer.launch({1});
    expect_refused(layer.op(1).synchronize(), Code::kStalled, {"rank 1", "peer rank 0"});
    EXPECT_EQ(layer.op(1).stall_report().cause, StallCause::kDeadline);
}

// The last wait of a launch: a peer that took part, but stopped before its results were out, cannot
// be had from outside; a rank that is one launch behind can.
TEST_P(Stall, RankOneLaunchBehindIsNamed) {
    StallLayer layer(group());
    layer.expect_good_launch(6);
    layer.launch({0, 1, 2});
    layer.launch({0, 2});
    EXPECT_TRUE(layer.op(1).synchronize().ok());
    expect_refused(layer.op(0).synchronize(), Code::kStalled, {"rank 1", "generation 3"});
    expect_refused(layer.op(2).synchronize(), Code::kStalled, {"rank 1", "generation 3"});
}

GCMOE_ON_BOTH_EXECUTORS(Stall);

// The first launch has its own limit, far above the steady one.
TEST(StallOnThreads, FirstLaunchMayBeLate) {
    StallLayer layer({}, {30.0, kSteadySeconds});
    layer.launch({0, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    layer.launch({2});
    for (Operator* op : layer.all()) {
        const Status status = op->synchronize();
        EXPECT_TRUE(status.ok()) << status.message();
    }
    layer.expect_good_launch(7);
}

TEST(StallOnThreads, FirstLaunchHasALimitToo) {
    StallLayer layer({}, {0.3, 60.0});
    const test::Stopwatch watch;
    layer.launch({0, 1});
    EXPECT_EQ(layer.op(0).synchronize().code(), Code::kStalled);
    EXPECT_EQ(layer.op(1).synchronize().code(), Code::kStalled);
    EXPECT_LT(watch.seconds(), 1.3);
}

TEST(StallOnThreads, ZeroWaitsForEver) {
    StallLayer layer({}, {0.0, 0.0});
    layer.launch({0, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    layer.launch({2});
    for (Operator* op : layer.all()) EXPECT_TRUE(op->synchronize().ok());
    layer.expect_good_launch(8);
}

// Virtual time: the defaults of 300 and 30 seconds pass in no time, for every seed.
TEST(StallOnStepper, IsInstantForEverySeed) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        GroupOptions group = test::group_with(ExecutorKind::kStepper, seed);
        group.resident_compute_units = static_cast<int>(seed % 3);
        StallLayer layer(group, WaitLimits{});
        layer.expect_good_launch(9);
        const test::Stopwatch watch;
        layer.launch({0, 2});
        for (const int rank : {0, 2}) {
            expect_refused(layer.op(rank).synchronize(), Code::kStalled, {"recv_count", "rank 1"});
        }
        EXPECT_LT(watch.seconds(), 2.0) << "seed " << seed;
    }
}

}  // namespace
}  // namespace gcmoe
