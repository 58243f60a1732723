// The candidates of a tuning: how many, all different, all of them plans, and why others are not.
#include "tools/gcmoe/tune_candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "plan/choose_plan.hpp"
#include "tools/gcmoe/bench_options.hpp"
#include "tools/gcmoe/tune_device.hpp"

namespace gcmoe::cli {
namespace {

BenchPlan bench_plan() {
    BenchPlan plan;
    EXPECT_TRUE(make_bench_plan({}, &plan).ok());
    return plan;
}

TuneSite site_of(const BenchPlan& plan, const checkpoint::ModelEntry& model, int tokens) {
    TuneSite site;
    EXPECT_TRUE(make_tune_site(plan, model, tokens, plan::kH200Sms, &site).ok());
    return site;
}

CandidateList whole_list(const TuneSite& site) {
    CandidateList list(site);
    EXPECT_TRUE(list.add_rules().ok());
    const PlanOptions rules = list.kept().front().plan;
    list.add_grid();
    list.add_variations(rules);
    list.add_launch_modes(rules);
    return list;
}

TEST(TuneCandidates, AreManyDifferentAndSoundAtEveryPoint) {
    const BenchPlan plan = bench_plan();
    for (const checkpoint::ModelEntry& model : plan.models) {
        for (const int tokens : plan.tokens) {
            SCOPED_TRACE(model.name + ", " + std::to_string(tokens));
            const TuneSite site = site_of(plan, model, tokens);
            const CandidateList list = whole_list(site);
            const plan::TunedCounts counts = list.counts();
            EXPECT_GE(counts.generated, 200);
            EXPECT_EQ(counts.generated,
                      counts.invalid + counts.duplicate + counts.dominated + counts.measured);
            EXPECT_EQ(counts.measured, static_cast<int>(list.kept().size()));
            EXPECT_GE(counts.measured, 50);
            std::set<std::string> texts;
            for (const Candidate& candidate : list.kept()) {
                EXPECT_TRUE(texts.insert(candidate_text(candidate)).second)
                    << candidate_text(candidate);
                PlanOptions options = candidate.plan;
                if (candidate.launch_mode == LaunchMode::kSerial) options.overlap = false;
                backend::Plan made;
                EXPECT_TRUE(plan::choose_plan(site.shape, tokens, options,
                                              plan::gpu_machine(site.sms, 1), &made)
                                .ok())
                    << candidate_text(candidate);
            }
        }
    }
}

// Spelled out, it is what the rules choose.
TEST(TuneCandidates, TheFirstIsTheRulesPlan) {
    const BenchPlan plan = bench_plan();
    const TuneSite site = site_of(plan, plan.models.front(), 32);
    const CandidateList list = whole_list(site);
    const PlanOptions& first = list.kept().front().plan;
    EXPECT_EQ(first.tuned, "none");
    backend::Plan rules;
    backend::Plan spelled;
    const plan::Machine machine = plan::gpu_machine(site.sms, 1);
    ASSERT_TRUE(plan::choose_plan(site.shape, 32, {}, machine, &rules).ok());
    ASSERT_TRUE(plan::choose_plan(site.shape, 32, first, machine, &spelled).ok());
    EXPECT_EQ(first.partition.dispatch_units, 8);
    EXPECT_NE(first.row_block, 0);
    EXPECT_EQ(spelled.memory.row_block, rules.memory.row_block);
    EXPECT_EQ(spelled.memory.ring_blocks, rules.memory.ring_blocks);
    EXPECT_EQ(spelled.memory.combine_on, rules.memory.combine_on);
    EXPECT_EQ(spelled.lead_blocks, rules.lead_blocks);
}

std::set<int> row_blocks(const TuneSite& site) {
    CandidateList list(site);
    EXPECT_TRUE(list.add_rules().ok());
    const std::size_t rules = list.kept().size();
    list.add_grid();
    std::set<int> rows;
    for (std::size_t i = rules; i < list.kept().size(); ++i) {
        rows.insert(list.kept()[i].plan.row_block);
    }
    return rows;
}

TEST(TuneCandidates, RowBlocksAreThoseThatTheRoutingsCanUse) {
    const BenchPlan plan = bench_plan();
    TuneSite site = site_of(plan, plan.models.front(), 64);
    site.expert_rows = {{1, 1, 1}};
    EXPECT_EQ(row_blocks(site), (std::set<int>{8}));
    site.expert_rows = {{20, 20, 20}};  // blocks of 8, 16: three and two times the weights
    EXPECT_EQ(row_blocks(site), (std::set<int>{24}));
    site.expert_rows = {{9, 9, 9}, {9, 20, 20}};  // 6 experts; 16 rows: 8 blocks, 8 rows: 14
    EXPECT_EQ(row_blocks(site), (std::set<int>{16, 24}));
    site.expert_rows = {{100}};  // 13, 7, 5, 4, 3, 3, 2, 2 blocks
    EXPECT_EQ(row_blocks(site), (std::set<int>{40, 56}));
    // Blocks of the shared expert, of 64 tokens, count as well, twice.
    site.shape.shared_inter = 2304;
    site.expert_rows = {{1}};  // 1 + 2 * (8, 4, 3, 2, 2, 2, 2, 1)
    EXPECT_EQ(row_blocks(site), (std::set<int>{64}));
    site.expert_rows = {{1, 1, 1, 1, 1, 1, 1, 1}};  // 8 + the same
    EXPECT_EQ(row_blocks(site), (std::set<int>{24, 32, 64}));
}

// What the rules choose is measured even where the model says that it cannot be the best.
TEST(TuneCandidates, TheRulesPlanIsNeverPruned) {
    const BenchPlan plan = bench_plan();
    TuneSite site = site_of(plan, plan.models.front(), 256);
    site.expert_rows = {{1}};
    const CandidateList list = whole_list(site);
    EXPECT_GT(list.kept().front().plan.row_block, 8);
}

TEST(TuneCandidates, WhereTheRulesHaveNoPlanThereIsNone) {
    const BenchPlan plan = bench_plan();
    TuneSite site = site_of(plan, plan.models.front(), 8);
    site.sms = 16;  // fewer compute SMs than the kernels' floor
    CandidateList list(site);
    const Status status = list.add_rules();
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("32"), std::string::npos) << status.message();
}

TEST(TuneCandidates, TextNamesWhatDiffers) {
    Candidate candidate;
    candidate.plan.partition = {8, 124};
    candidate.plan.row_block = 16;
    candidate.plan.ring_blocks = 64;
    candidate.plan.lead_blocks = 14;
    candidate.plan.combine = CombineUnits::kFollow;
    EXPECT_EQ(candidate_text(candidate), "8+124 SMs, 16 rows, ring 64, lead 14, follow");
    candidate.launch_mode = LaunchMode::kEager;
    EXPECT_EQ(candidate_text(candidate), "8+124 SMs, 16 rows, ring 64, lead 14, follow, eager");
    candidate.launch_mode = LaunchMode::kSerial;
    EXPECT_EQ(candidate_text(candidate), "8+124 SMs, 16 rows, serial");
}

}  // namespace
}  // namespace gcmoe::cli
