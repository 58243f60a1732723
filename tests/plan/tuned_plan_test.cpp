// Who wins: the caller, then the tuned table, then the rules; and what the report says of it.
#include "plan/tuned_plan.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "op/refusal.hpp"
#include "plan/tuned_table.hpp"
#include "plan/tuned_text.hpp"

namespace gcmoe {
namespace {

using plan::Machine;
using plan::PlanSources;
using test::kTunedEntry;
using test::kTunedHead;
using test::replaced;

class TunedPlan : public testing::Test {
  protected:
    void SetUp() override {
        path_ = testing::TempDir() + "gcmoe_tuned_" + std::to_string(getpid()) + ".jsonl";
        write(std::string(kTunedHead) + kTunedEntry);
        options_.tuned = path_;
    }
    void TearDown() override { std::remove(path_.c_str()); }

    void write(const std::string& text) const { std::ofstream(path_) << text; }
    Status choose(const Machine& machine = plan::gpu_machine(132, 1)) {
        return plan::choose_tuned_plan(shape_, tokens_, options_, machine, &plan_, &sources_);
    }
    // "24 tuned".
    std::string value(const std::string& name) const {
        for (const PlanValue& value : sources_.report(plan_).values) {
            if (value.name == name) return value.value + " " + plan_origin_name(value.origin);
        }
        return "no such value";
    }
    bool note_has(const std::string& words) const {
        return sources_.note.find(words) != std::string::npos;
    }
    // The plan is that of the rules with what the caller gave.
    void expect_rules() {
        backend::Plan rules;
        ASSERT_TRUE(
            plan::choose_plan(shape_, tokens_, options_, plan::gpu_machine(132, 1), &rules).ok());
        EXPECT_EQ(plan_.memory.dispatch_units, rules.memory.dispatch_units);
        EXPECT_EQ(plan_.memory.row_block, rules.memory.row_block);
        EXPECT_EQ(plan_.memory.ring_blocks, rules.memory.ring_blocks);
        EXPECT_EQ(plan_.memory.combine_on, rules.memory.combine_on);
        EXPECT_EQ(plan_.lead_blocks, rules.lead_blocks);
        for (const PlanValue& value : sources_.report(plan_).values) {
            EXPECT_NE(value.origin, PlanOrigin::kTuned) << value.name;
        }
    }

    std::string path_;
    Shape shape_ = test::tuned_shape();
    int tokens_ = 32;
    PlanOptions options_;
    backend::Plan plan_;
    PlanSources sources_;
};

TEST_F(TunedPlan, FillsWhatIsOpen) {
    ASSERT_TRUE(choose().ok());
    EXPECT_EQ(value("dispatch_units"), "6 tuned");
    EXPECT_EQ(value("compute_units"), "126 tuned");
    EXPECT_EQ(value("row_block"), "24 tuned");
    EXPECT_EQ(value("ring_blocks"), "32 tuned");
    EXPECT_EQ(value("lead_blocks"), "10 tuned");
    EXPECT_EQ(value("combine"), "compute tuned");
    EXPECT_EQ(value("second_columns"), "256 rule");
    EXPECT_EQ(value("overlap"), "on rule");
    EXPECT_EQ(sources_.launch, "eager");
    EXPECT_TRUE(note_has("line 2")) << sources_.note;
    EXPECT_TRUE(note_has("250.5 us at 32 on NVIDIA H200, the rules' plan 260.0 us"))
        << sources_.note;
}

TEST_F(TunedPlan, TheCallersValuesWin) {
    options_.row_block = 16;
    options_.lead_blocks = 3;
    options_.combine = CombineUnits::kFollow;
    options_.partition.dispatch_units = 20;
    ASSERT_TRUE(choose().ok());
    EXPECT_EQ(value("row_block"), "16 explicit");
    EXPECT_EQ(value("lead_blocks"), "3 explicit");
    EXPECT_EQ(value("combine"), "follow explicit");
    EXPECT_EQ(value("dispatch_units"), "20 explicit");
    EXPECT_EQ(value("compute_units"), "112 rule");  // a partition comes whole
    EXPECT_EQ(value("ring_blocks"), "32 tuned");
}

// The table's lead of 10 blocks does not fit the caller's ring: the caller gets what he had
// without the table.
TEST_F(TunedPlan, AnEntryThatDoesNotFitIsSetAside) {
    options_.ring_blocks = 8;
    ASSERT_TRUE(choose().ok());
    EXPECT_TRUE(note_has("set aside")) << sources_.note;
    EXPECT_TRUE(note_has("lead_blocks = 10 must be in 1..ring_blocks = 8")) << sources_.note;
    EXPECT_TRUE(sources_.launch.empty());
    expect_rules();
}

TEST_F(TunedPlan, TheCallersErrorsAreHisOwn) {
    options_.row_block = 20;
    test::expect_refused(choose(), Code::kBadConfig, {"plan 'default'", "row_block = 20"});
}

TEST_F(TunedPlan, NoTableSpeaksForOtherPlans) {
    const auto expect_none = [&](const std::string& words) {
        ASSERT_TRUE(choose().ok());
        EXPECT_EQ(sources_.note.rfind("none: ", 0), 0U) << sources_.note;
        EXPECT_TRUE(note_has(words)) << sources_.note;
        expect_rules();
    };
    tokens_ = 33;
    expect_none("no entry for this layer and max_tokens = 33 on 132 SMs");
    tokens_ = 32;
    options_.overlap = false;
    expect_none("overlap");
    options_.overlap = true;
    options_.shared_experts = SharedExperts::kRole4;
    expect_none("role 4");
    options_.shared_experts = SharedExperts::kAuto;
    options_.tuned = "none";
    expect_none("not wanted");
    options_.tuned = path_;
    ASSERT_TRUE(choose(plan::gpu_machine(78, 1)).ok());
    EXPECT_TRUE(note_has("on 78 SMs")) << sources_.note;
    ASSERT_TRUE(choose(plan::cpu_machine()).ok());
    EXPECT_TRUE(note_has("a GPU for itself")) << sources_.note;
    shape_.num_ranks = 2;
    ASSERT_TRUE(choose(plan::gpu_machine(132, 2)).ok());
    EXPECT_TRUE(note_has("a GPU for itself")) << sources_.note;
}

TEST_F(TunedPlan, ABadFileIsAnErrorWhereverItIsNamed) {
    write("{}\n");
    test::expect_refused(choose(), Code::kBadConfig, {path_, "line 1", "kind is missing"});
    test::expect_refused(choose(plan::cpu_machine()), Code::kBadConfig, {path_, "line 1"});
    options_.tuned = path_ + ".missing";
    test::expect_refused(choose(), Code::kBadConfig, {".missing", "No such file"});
}

TEST_F(TunedPlan, AnEntryMayKeepTheRules) {
    const std::string entry = kTunedEntry;
    const std::size_t begin = entry.find("{\"dispatch_units\"");
    const std::size_t end = entry.find('}', begin);
    write(kTunedHead + entry.substr(0, begin) + "{" + entry.substr(end));
    ASSERT_TRUE(choose().ok());
    EXPECT_TRUE(note_has("the rules' values stay")) << sources_.note;
    EXPECT_EQ(sources_.launch, "eager");
    expect_rules();
}

// Through the public call, on a build without kernels the GPU being an H200.
TEST_F(TunedPlan, ReportsNameEveryValue) {
    OperatorOptions options;
    options.backend = "cuda";
    options.max_tokens = tokens_;
    options.plans.resize(2);
    options.plans[0] = options_;
    options.plans[1].name = "second";
    options.plans[1].tuned = "none";
    options.plans[1].row_block = 64;
    std::vector<PlanReport> reports(5);
    const Status status = report_plans(shape_, options, &reports);
    if (status.code() == Code::kUnsupported) GTEST_SKIP() << status.message();
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(reports.size(), 2U);
    std::map<std::string, PlanOrigin> origins;
    for (const PlanValue& value : reports[0].values) origins[value.name] = value.origin;
    EXPECT_EQ(origins.size(), 10U);
    EXPECT_EQ(origins.at("placement"), PlanOrigin::kRule);
    EXPECT_EQ(origins.at("row_block"), PlanOrigin::kTuned);
    EXPECT_EQ(reports[0].launch, "eager");
    EXPECT_EQ(reports[1].name, "second");
    EXPECT_EQ(reports[1].tuned, "none: not wanted");
    options.plans[0].tuned = path_ + ".missing";
    test::expect_refused(report_plans(shape_, options, &reports), Code::kBadConfig, {".missing"});
}

}  // namespace
}  // namespace gcmoe
