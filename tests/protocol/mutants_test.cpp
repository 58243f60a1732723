// One test per rule: with all rules kept, many seeds give the expected bits; without the rule, one
// of the seeds does not. Rules that others imply stand in redundant_rules_test.cpp, rules about
// reports and old sessions in mutant_reports_test.cpp.
#include <gtest/gtest.h>

#include "protocol/mutant_layer.hpp"
#include "protocol/words.hpp"

namespace gcmoe {
namespace {

using protocol::Rule;
using test::mutant_control;
using test::MutantLayer;
using test::MutantStepperMemory;
using test::Outcome;
using test::Prepared;
using test::run_mutant;
using test::Scenario;

constexpr std::uint64_t kKeptSeeds = 12;
constexpr std::uint64_t kMostSeeds = 400;

// One ring place, one task of each kind per block: every block waits for the one before it.
Scenario narrow_ring() { return {}; }

// Three ranks, two places, two tasks of each kind per block, several units of each role; ranks
// without tokens, unused slots, the same expert twice in a token.
Scenario three_ranks() {
    Scenario scenario;
    scenario.num_ranks = 3;
    scenario.num_experts = 6;
    scenario.hidden = 256;
    scenario.inter = 256;
    scenario.ring_blocks = 2;
    scenario.partition = {2, 3};
    scenario.tokens = {{7, 5, 6}, {0, 9, 3}, {12, 0, 0}};
    scenario.mask = 0.2;
    return scenario;
}

Scenario shared_expert() {
    Scenario scenario;
    scenario.shared_inter = 256;
    scenario.tokens = {{3, 4}, {12, 0}, {1, 20}};
    return scenario;
}

// One rank: whoever waits in vain is the one who reports.
Scenario alone(const std::vector<std::vector<int>>& tokens) {
    Scenario scenario;
    scenario.num_ranks = 1;
    scenario.tokens = tokens;
    return scenario;
}

// Generation, laps and row counts wrap during the launches.
Scenario near_wrap() {
    Scenario scenario;
    scenario.start = {0xFFFFFFFDU, 1, 0xFFFFFFFFULL - 2, 0xFFFFFFF0U, ~std::uint64_t{0} - 20};
    return scenario;
}

void expect_kept(const Prepared& prepared, std::uint64_t num_seeds) {
    for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
        const Outcome outcome = run_mutant(prepared, Rule::kCount, seed);
        ASSERT_TRUE(outcome.good()) << "all rules kept, seed " << seed << ": " << outcome.text();
    }
}

// The outcome of the first seed that shows the loss.
Outcome expect_caught(Rule rule, const Scenario& scenario) {
    const Prepared prepared(scenario);
    expect_kept(prepared, kKeptSeeds);
    for (std::uint64_t seed = 0; seed < kMostSeeds; ++seed) {
        Outcome outcome = run_mutant(prepared, rule, seed);
        if (outcome.good()) continue;
        testing::Test::RecordProperty("seed", static_cast<int>(seed));
        testing::Test::RecordProperty("outcome", outcome.text());
        return outcome;
    }
    ADD_FAILURE() << "rule " << static_cast<int>(rule) << " removed, and none of " << kMostSeeds
                  << " seeds shows it";
    return {};
}

TEST(Mutants, AllRulesKept) {
    for (Scenario scenario : {narrow_ring(), three_ranks(), shared_expert(), near_wrap()}) {
        for (const CombineUnits combine : {CombineUnits::kCompute, CombineUnits::kDispatch}) {
            scenario.combine = combine;
            for (const int resident : {0, 1, 2}) {
                scenario.resident = resident;
                expect_kept(Prepared(scenario), 24);
            }
        }
    }
}

TEST(Mutants, R1PublishZeroCounts) {
    Scenario scenario = narrow_ring();
    scenario.tokens = {{1, 0}};
    const Outcome outcome = expect_caught(Rule::kPublishZeroCounts, scenario);
    EXPECT_TRUE(outcome.has(StallCause::kDeadline, Signal::kRecvCount)) << outcome.text();
}

TEST(Mutants, R2SlotsBeforeCounts) { expect_caught(Rule::kSlotsBeforeCounts, three_ranks()); }

TEST(Mutants, R4WaitEverySource) { expect_caught(Rule::kWaitEverySource, narrow_ring()); }

TEST(Mutants, R5CountGeneration) { expect_caught(Rule::kCountGeneration, narrow_ring()); }

TEST(Mutants, R7TargetsBeforeBlocks) {
    const Outcome outcome = expect_caught(Rule::kTargetsBeforeBlocks, narrow_ring());
    EXPECT_TRUE(outcome.stalled()) << outcome.text();
}

// The tag is a second line: num_blocks is published last. So here it comes before the table entry
// of the only block, and nothing but the tag keeps role 2 from the entry of the launch before.
TEST(Mutants, R8BlockTagIfNumBlocksCameFirst) {
    Scenario scenario = alone({{3}, {5}, {1}, {4}});
    scenario.num_experts = 1;
    scenario.topk = 1;
    scenario.num_launches = 8;
    scenario.arm = [](MutantLayer& layer) {
        const layout::RankMemory memory = layer.memory(0);
        mutant_control().before_write = [memory](const void* word) {
            if (word != memory.block_table()) return;
            *memory.num_blocks() = protocol::num_blocks_word(memory.state()->generation + 1, 1);
        };
    };
    expect_caught(Rule::kBlockTag, scenario);
}

TEST(Mutants, R9WaitL1Empty) { expect_caught(Rule::kWaitL1Empty, narrow_ring()); }

TEST(Mutants, R10Padding) {
    const Outcome outcome = expect_caught(Rule::kPadding, narrow_ring());
    EXPECT_TRUE(outcome.stalled()) << outcome.text();
}

TEST(Mutants, R11RowsBeforeFull) { expect_caught(Rule::kRowsBeforeFull, three_ranks()); }

TEST(Mutants, R12WaitL1Full) { expect_caught(Rule::kWaitL1Full, narrow_ring()); }

TEST(Mutants, R13ReadBeforeL1Release) { expect_caught(Rule::kReadBeforeL1Release, narrow_ring()); }

TEST(Mutants, R14OriginsBeforeL1Release) {
    expect_caught(Rule::kOriginsBeforeL1Release, narrow_ring());
}

TEST(Mutants, R15WaitL2Empty) { expect_caught(Rule::kWaitL2Empty, narrow_ring()); }

TEST(Mutants, R16OriginsAfterL2Empty) { expect_caught(Rule::kOriginsAfterL2Empty, narrow_ring()); }

TEST(Mutants, R17OriginsBeforeMask) { expect_caught(Rule::kOriginsBeforeMask, narrow_ring()); }

TEST(Mutants, R18MaskSense) { expect_caught(Rule::kMaskSense, narrow_ring()); }

TEST(Mutants, R19WaitMask) { expect_caught(Rule::kWaitMask, three_ranks()); }

TEST(Mutants, R20ReadBeforeL2Release) { expect_caught(Rule::kReadBeforeL2Release, narrow_ring()); }

TEST(Mutants, R21StoresBeforeRowsLeft) {
    expect_caught(Rule::kStoresBeforeRowsLeft, narrow_ring());
}

TEST(Mutants, R22DoneWithoutRows) {
    Scenario scenario = narrow_ring();
    scenario.tokens = {{3, 0}};
    scenario.num_launches = 1;
    const Outcome outcome = expect_caught(Rule::kDoneWithoutRows, scenario);
    EXPECT_TRUE(outcome.has(StallCause::kDeadline, Signal::kDone)) << outcome.text();
}

TEST(Mutants, R23WaitEveryDone) { expect_caught(Rule::kWaitEveryDone, narrow_ring()); }

TEST(Mutants, R24DoneOrdered) { expect_caught(Rule::kDoneOrdered, near_wrap()); }

// Units of role 3 one after the other: the second begins after the first has ended.
TEST(Mutants, R25AdvanceLast) {
    Scenario scenario = narrow_ring();
    scenario.resident = 1;
    expect_caught(Rule::kAdvanceLast, scenario);
}

// A lead that `plan` refuses: twice the ring.
bool compute_with_lead(const cpu::CpuLaunch& launch, std::uint32_t unit) {
    cpu::CpuLaunch own = launch;
    if (!MutantStepperMemory::keeps(Rule::kTaskOrder)) {
        own.lead_blocks = 2 * launch.memory.plan.ring_blocks;
    }
    return cpu::role2_compute<MutantStepperMemory>(own, unit);
}

TEST(Mutants, R26TaskOrder) {
    Scenario scenario = alone({{9}});
    scenario.resident = 1;
    scenario.roles.compute = &compute_with_lead;
    const Outcome outcome = expect_caught(Rule::kTaskOrder, scenario);
    EXPECT_EQ(outcome.reports[0].cause, StallCause::kDeadline) << outcome.text();
}

TEST(Mutants, R30WaitSharedReady) { expect_caught(Rule::kWaitSharedReady, shared_expert()); }

TEST(Mutants, R31SharedTopUp) {
    Scenario scenario = alone({{3}, {12}, {20}});
    scenario.shared_inter = 256;
    const Outcome outcome = expect_caught(Rule::kSharedTopUp, scenario);
    EXPECT_TRUE(outcome.has(StallCause::kDeadline, Signal::kSharedReady)) << outcome.text();
}

// More workers than the tasks of two laps of the place: one looks at the mask a lap too early.
TEST(Mutants, R33WaitLastLap) {
    Scenario scenario = narrow_ring();
    scenario.partition = {1, 6};
    scenario.tokens = {{20, 12}};
    expect_caught(Rule::kWaitLastLap, scenario);
}

// Role 3 on role 1's units, units of role 2 one after the other: the second begins when the first
// has done all tasks.
TEST(Mutants, R34AdvanceAfterRole2) {
    Scenario scenario = narrow_ring();
    scenario.combine = CombineUnits::kDispatch;
    scenario.resident = 1;
    const Outcome outcome = expect_caught(Rule::kAdvanceAfterRole2, scenario);
    EXPECT_TRUE(outcome.has(StallCause::kDeadline, Signal::kNumBlocks)) << outcome.text();
}

// No routed rows at all: every `done` stands before the first shared task.
TEST(Mutants, R35SharedRowsBeforeSum) {
    Scenario scenario = shared_expert();
    scenario.combine = CombineUnits::kDispatch;
    scenario.mask = 1.0;
    expect_caught(Rule::kSharedRowsBeforeSum, scenario);
}

TEST(Mutants, R32RankBarrier) {
    Scenario scenario = narrow_ring();
    scenario.partition.dispatch_units = 2;
    expect_caught(Rule::kRankBarrier, scenario);
}

}  // namespace
}  // namespace gcmoe
