// What the search finds where the times are known.
#include "tools/gcmoe/tune_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/choose_plan.hpp"
#include "tools/gcmoe/tune_device.hpp"
#include "tune/fake_tune_device.hpp"

namespace gcmoe::cli {
namespace {

using test::FakeTuneDevice;

class TuneSearch : public testing::Test {
  protected:
    void SetUp() override {
        BenchPlan plan;
        ASSERT_TRUE(make_bench_plan({}, &plan).ok());
        ASSERT_TRUE(make_tune_site(plan, plan.models.front(), 32, plan::kH200Sms, &site_).ok());
        limits_.now = [this] { return device_.clock; };
        limits_.warm = 2;
        limits_.timed = 5;
    }
    Status tune() { return tune_point(&device_, site_, limits_, &point_); }
    void expect_counts() const {
        const plan::TunedCounts& counts = point_.counts;
        EXPECT_GE(counts.generated, 200);
        EXPECT_EQ(counts.generated, counts.invalid + counts.duplicate + counts.dominated +
                                        counts.budget + counts.measured);
        EXPECT_EQ(counts.finalists, static_cast<int>(point_.finalists.size()));
    }

    FakeTuneDevice device_;
    TuneSite site_;
    TuneLimits limits_;
    TunedPoint point_;
};

// The best is neither on the grid nor next to the rules' plan: its partition and combine form are
// found first, then its ring and lead.
TEST_F(TuneSearch, FindsThePlanThatIsTheFastest) {
    device_.us = [](const Candidate& candidate, int) {
        const PlanOptions& plan = candidate.plan;
        double us = 100;
        us += std::abs(plan.partition.dispatch_units - 14);
        us += plan.combine == CombineUnits::kCompute ? 0 : 5;
        us += std::abs(plan.row_block - 16);
        us += plan.ring_blocks == 32 ? 0 : 1;
        us += plan.lead_blocks < 8 ? 0 : 2;
        return us + (candidate.launch_mode == LaunchMode::kGraph ? 0 : 50);
    };
    ASSERT_TRUE(tune().ok());
    expect_counts();
    EXPECT_FALSE(point_.keeps_rules);
    EXPECT_EQ(point_.chosen.plan.partition.dispatch_units, 14);
    EXPECT_EQ(point_.chosen.plan.combine, CombineUnits::kCompute);
    EXPECT_EQ(point_.chosen.plan.ring_blocks, 32);
    EXPECT_LT(point_.chosen.plan.lead_blocks, 8);
    EXPECT_EQ(point_.chosen_us, 100);
    EXPECT_EQ(point_.rules_us, 114);
    EXPECT_EQ(point_.launch, LaunchMode::kGraph);
    EXPECT_EQ(point_.counts.budget, 0);
}

TEST_F(TuneSearch, KeepsTheRulesWhereNothingIsMuchFaster) {
    device_.us = [](const Candidate& candidate, int) {
        return candidate.plan.partition.dispatch_units == 4 ? 99.2 : 100.0;
    };
    ASSERT_TRUE(tune().ok());
    EXPECT_TRUE(point_.keeps_rules);
    EXPECT_EQ(point_.chosen.plan.partition.dispatch_units, 8);
    EXPECT_EQ(point_.chosen_us, 100);
    EXPECT_EQ(point_.best_us, 99.2);
    limits_.threshold_percent = 0.5;
    point_ = {};
    ASSERT_TRUE(tune().ok());
    EXPECT_FALSE(point_.keeps_rules);
    EXPECT_EQ(point_.chosen.plan.partition.dispatch_units, 4);
}

// Faster on the routings of the finals only: luck.
TEST_F(TuneSearch, WhatOtherRoutingsDoNotConfirmIsNotTaken) {
    device_.us = [this](const Candidate& candidate, int seed) {
        return candidate.plan.partition.dispatch_units == 4 && seed < limits_.seeds ? 90.0 : 100.0;
    };
    ASSERT_TRUE(tune().ok());
    EXPECT_TRUE(point_.keeps_rules);
    EXPECT_EQ(point_.best_us, 100);
    EXPECT_EQ(device_.opened.back().seeds, (std::vector<int>{3, 4, 5}));
}

// Much faster on one routing, a little slower on the others: not taken into the finals.
TEST_F(TuneSearch, OneRoutingDoesNotDecide) {
    device_.us = [](const Candidate& candidate, int seed) {
        if (candidate.plan.partition.dispatch_units == 4) return seed == 0 ? 99.0 : 101.0;
        return candidate.plan.partition.dispatch_units == 8 ? 100.0 : 102.0;
    };
    ASSERT_TRUE(tune().ok());
    EXPECT_TRUE(point_.keeps_rules);
    for (const Finalist& finalist : point_.finalists) {
        EXPECT_EQ(finalist.candidate.plan.partition.dispatch_units, 8);
    }
}

TEST_F(TuneSearch, FinalistsAreComparedAndTimedAsAsked) {
    ASSERT_TRUE(tune().ok());
    int num_apart = 0;
    for (const FakeTuneDevice::Opened& opened : device_.opened) {
        EXPECT_TRUE(opened.compared);
        EXPECT_LE(opened.candidates.size(), 64U);
        EXPECT_EQ(candidate_text(opened.candidates.front()),
                  candidate_text(device_.opened.front().candidates.front()));
        if (!opened.apart) {
            EXPECT_EQ(opened.seeds, (std::vector<int>{0, 1, 2}));
            continue;
        }
        ++num_apart;
        EXPECT_EQ(opened.seeds.size(), 3U);
        EXPECT_EQ(opened.warm, 2);
        EXPECT_EQ(opened.timed, 5);
    }
    EXPECT_EQ(num_apart, 2);
    device_.compare_status = {Code::kInternal, "other bits"};
    EXPECT_EQ(tune().message(), "other bits");
}

TEST_F(TuneSearch, AnotherLaunchModeIsRecommendedOnly) {
    device_.us = [](const Candidate& candidate, int) {
        return candidate.launch_mode == LaunchMode::kEager ? 90.0 : 100.0;
    };
    ASSERT_TRUE(tune().ok());
    EXPECT_TRUE(point_.keeps_rules);
    EXPECT_EQ(point_.launch, LaunchMode::kEager);
    EXPECT_EQ(point_.chosen.launch_mode, LaunchMode::kGraph);
    EXPECT_EQ(point_.chosen_us, 100);
    device_.us = [](const Candidate& candidate, int) {
        return candidate.launch_mode == LaunchMode::kSerial ? 90.0 : 100.0;
    };
    point_ = {};
    ASSERT_TRUE(tune().ok());
    EXPECT_EQ(point_.launch, LaunchMode::kSerial);
}

// Late, the rest of a round is left out, and counted.
TEST_F(TuneSearch, EndsInTime) {
    limits_.seconds = 10;
    device_.seconds_per_open = 100;
    ASSERT_TRUE(tune().ok());
    expect_counts();
    EXPECT_GT(point_.counts.budget, 0);
    EXPECT_GE(point_.counts.measured, 60);
    EXPECT_TRUE(point_.keeps_rules);
}

}  // namespace
}  // namespace gcmoe::cli
