// Every refusal of choose_plan, and what it chooses when the options leave it open.
#include "plan/choose_plan.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "checkpoint/models.hpp"
#include "op/refusal.hpp"
#include "schedule/task_order.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using plan::choose_plan;
using test::expect_refused;

constexpr int kMost = std::numeric_limits<int>::max();
constexpr plan::Machine kCpu = plan::cpu_machine();

using Case = test::Refusal<PlanOptions>;
class PlanRefusal : public testing::TestWithParam<Case> {};

TEST_P(PlanRefusal, NamesPlanFieldValueLimit) {
    PlanOptions options;
    options.name = "decode";
    options.row_block = 16;
    options.ring_blocks = 4;
    GetParam().change(&options);
    backend::Plan plan;
    const Status status = choose_plan(test::small_shape(2), 40, options, kCpu, &plan);
    expect_refused(status, Code::kBadConfig, GetParam().words);
    expect_refused(status, Code::kBadConfig, {"plan 'decode'"});
}

using Options = PlanOptions;

std::vector<Case> block_cases() {
    return {
        {"RowBlockNegative", [](Options* o) { o->row_block = -8; }, {"row_block = -8", "8..64"}},
        {"RowBlockBelow", [](Options* o) { o->row_block = 4; }, {"row_block = 4", "8..64"}},
        {"RowBlockUneven", [](Options* o) { o->row_block = 20; }, {"row_block = 20", "of 8"}},
        {"RowBlockAbove", [](Options* o) { o->row_block = 72; }, {"row_block = 72", "8..64"}},
        {"RowBlockHuge", [](Options* o) { o->row_block = kMost; }, {"2147483647", "8..64"}},
        {"RowBlockAloneNegative",
         [](Options* o) {
             o->row_block = -8;
             o->ring_blocks = 0;
         },
         {"row_block = -8", "8..64"}},
        {"RingNegative", [](Options* o) { o->ring_blocks = -2; }, {"ring_blocks = -2", "1048576"}},
        {"RingNoPowerOfTwo",
         [](Options* o) { o->ring_blocks = 6; },
         {"ring_blocks = 6", "power of two"}},
        {"RingAbove",
         [](Options* o) { o->ring_blocks = 1 << 21; },
         {"ring_blocks = 2097152", "1..1048576", "2^32"}},
        {"ColumnsNegative",
         [](Options* o) { o->second_columns = -128; },
         {"second_columns = -128", "128"}},
        {"ColumnsUneven",
         [](Options* o) { o->second_columns = 200; },
         {"second_columns = 200", "128"}},
        {"ColumnsOverHidden",
         [](Options* o) { o->second_columns = 384; },
         {"second_columns = 384", "hidden = 256"}},
        {"ColumnsHuge",
         [](Options* o) { o->second_columns = kMost - 127; },
         {"second_columns = 2147483520", "hidden = 256"}},
        {"LeadNegative",
         [](Options* o) { o->lead_blocks = -1; },
         {"lead_blocks = -1", "ring_blocks = 4"}},
        {"LeadOverRing",
         [](Options* o) { o->lead_blocks = 5; },
         {"lead_blocks = 5", "ring_blocks = 4", "later task"}},
        {"RingTooSmallWithoutOverlap",
         [](Options* o) { o->overlap = false; },
         // 2 ranks * 40 tokens * 4 slots over 8 experts: (320 + 8 * 15) / 16
         {"overlap off", "ring_blocks >= 27", "not 4"}},
    };
}

std::vector<Case> partition_cases() {
    return {
        {"DispatchNegative",
         [](Options* o) { o->partition.dispatch_units = -1; },
         {"dispatch_units = -1", "at least 1"}},
        {"ComputeNegative",
         [](Options* o) { o->partition.compute_units = -3; },
         {"compute_units = -3", "at least 1"}},
        {"DispatchHuge",
         [](Options* o) { o->partition.dispatch_units = kMost; },
         {"2147483647", "at most 1024"}},
        {"ComputeHuge",
         [](Options* o) { o->partition.compute_units = 1024; },
         {"1 + 1024", "at most 1024"}},
    };
}

INSTANTIATE_TEST_SUITE_P(Blocks, PlanRefusal, testing::ValuesIn(block_cases()),
                         test::refusal_name<PlanOptions>);
INSTANTIATE_TEST_SUITE_P(Partitions, PlanRefusal, testing::ValuesIn(partition_cases()),
                         test::refusal_name<PlanOptions>);

// rows_left counts rows * n2 in 32 bits.
TEST(PlanRefusals, RowsLeftWouldWrapInOneLaunch) {
    Shape shape = test::small_shape(1);
    shape.hidden = 65536;
    PlanOptions options;
    options.second_columns = 128;
    backend::Plan plan;
    expect_refused(choose_plan(shape, (1 << 24) / 4 - 1, options, kCpu, &plan), Code::kBadConfig,
                   {"second_columns = 128", "rows_left", "2^32"});
    options.second_columns = 512;
    EXPECT_TRUE(choose_plan(shape, (1 << 24) / 4 - 1, options, kCpu, &plan).ok());
}

// What must hold of any plan.
void expect_sound(const Shape& shape, int max_tokens, const backend::Plan& plan) {
    const layout::PlanMemory& memory = plan.memory;
    EXPECT_GE(memory.row_block, 8U);
    EXPECT_LE(memory.row_block, 64U);
    EXPECT_EQ(memory.row_block % 8, 0U);
    EXPECT_TRUE(std::has_single_bit(memory.ring_blocks));
    const std::uint64_t block_bytes =
        std::uint64_t{memory.row_block} * static_cast<std::uint64_t>(shape.hidden + shape.inter);
    EXPECT_TRUE(memory.ring_blocks <= 2 || memory.ring_blocks * block_bytes <= kCpu.ring_bytes ||
                !plan.overlap);
    EXPECT_EQ(memory.n1, static_cast<std::uint32_t>(shape.inter / 128));
    EXPECT_LE(memory.n1, 64U);
    EXPECT_GE(memory.n2 * memory.second_columns, static_cast<std::uint32_t>(shape.hidden));
    EXPECT_LT((memory.n2 - 1) * memory.second_columns, static_cast<std::uint32_t>(shape.hidden));
    EXPECT_GE(plan.lead_blocks, 1U);
    EXPECT_LE(plan.lead_blocks, memory.ring_blocks);
    if (!plan.overlap) {
        EXPECT_GE(memory.ring_blocks,
                  layout::most_blocks(static_cast<std::uint64_t>(shape.num_ranks),
                                      static_cast<std::uint64_t>(max_tokens),
                                      static_cast<std::uint64_t>(shape.topk),
                                      static_cast<std::uint64_t>(shape.experts_per_rank()),
                                      memory.row_block));
    }
    schedule::TaskOrder order;
    order.num_blocks = std::min<std::uint32_t>(3 * memory.ring_blocks, 300);
    order.n1 = memory.n1;
    order.n2 = memory.n2;
    order.lead = plan.lead_blocks;
    const Status status = schedule::check_task_order(order, memory.ring_blocks);
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PlanChoice, SoundForEveryModelRanksAndTokens) {
    for (const checkpoint::ModelEntry& entry : checkpoint::known_models()) {
        if (entry.hidden % 128 != 0) continue;
        for (const int ranks : {1, 2, 8, 16, 32}) {
            for (const int tokens : {1, 2, 8, 32, 256, 4096}) {
                for (const bool overlap : {true, false}) {
                    const Shape shape = checkpoint::model_shape(entry, ranks);
                    PlanOptions options;
                    options.overlap = overlap;
                    backend::Plan plan;
                    const Status status = choose_plan(shape, tokens, options, kCpu, &plan);
                    ASSERT_TRUE(status.ok()) << entry.name << ": " << status.message();
                    SCOPED_TRACE(entry.name + ", ranks " + std::to_string(ranks) + ", tokens " +
                                 std::to_string(tokens));
                    expect_sound(shape, tokens, plan);
                }
            }
        }
    }
}

TEST(PlanChoice, RowBlockFollowsTheTokens) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 8);
    const auto row_block = [&shape](int tokens) {
        backend::Plan plan;
        EXPECT_TRUE(choose_plan(shape, tokens, {}, kCpu, &plan).ok());
        return plan.memory.row_block;
    };
    EXPECT_EQ(row_block(1), 8U);     // 48 slots over 256 experts
    EXPECT_EQ(row_block(32), 16U);   // 6 rows of an expert, standard deviation 2.4
    EXPECT_EQ(row_block(64), 24U);   // 12, 3.5
    EXPECT_EQ(row_block(128), 32U);  // 24, 4.9: 32 rows hold 9 experts of 10
    EXPECT_EQ(row_block(256), 64U);  // 48, 6.9
    EXPECT_EQ(row_block(4096), 64U);
}

TEST(PlanOnAGpu, ARankAloneGetsAllSms) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 1);
    backend::Plan plan;
    ASSERT_TRUE(choose_plan(shape, 32, {}, plan::gpu_machine(132, 1), &plan).ok());
    EXPECT_EQ(plan.memory.dispatch_units, 8U);
    EXPECT_EQ(plan.memory.compute_units, 124U);
    EXPECT_EQ(plan.memory.second_columns, 256U);
    PlanOptions options;
    options.partition.dispatch_units = 20;
    ASSERT_TRUE(choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan).ok());
    EXPECT_EQ(plan.memory.compute_units, 112U);
    options.partition.compute_units = 100;
    const Status status = choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan);
    EXPECT_NE(status.message().find("20 + 100 = 120 must be 132"), std::string::npos)
        << status.message();
}

TEST(PlanOnAGpu, VirtualRanksShareThePairs) {
    struct Share {
        int ranks, dispatch, compute;
    };
    for (const Share& share :
         {Share{2, 10, 56}, Share{4, 4, 28}, Share{8, 2, 14}, Share{16, 2, 6}, Share{33, 2, 2}}) {
        const plan::Machine machine = plan::gpu_machine(132, share.ranks);
        EXPECT_EQ(machine.default_dispatch, share.dispatch) << share.ranks << " ranks";
        EXPECT_EQ(machine.default_compute, share.compute) << share.ranks << " ranks";
        EXPECT_EQ(machine.units_of_share, share.dispatch + share.compute);
    }
}

// First GEMMs run ahead by four tasks a unit, within the ring.
TEST(PlanOnAGpu, LeadFollowsTheUnits) {
    checkpoint::ModelEntry entry;
    ASSERT_TRUE(checkpoint::find_model("v4.1-flash", &entry).ok());
    const Shape shape = checkpoint::model_shape(entry, 1);  // 18 + 20 tasks a block
    backend::Plan plan;
    PlanOptions options;
    options.ring_blocks = 64;
    ASSERT_TRUE(choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan).ok());
    EXPECT_EQ(plan.lead_blocks, 14U);  // 4 * 124 / 38
    options.ring_blocks = 4;
    ASSERT_TRUE(choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan).ok());
    EXPECT_EQ(plan.lead_blocks, 4U);
}

// Two tokens an SM of role 1; beyond that, and for role 4, role 2's units.
TEST(PlanOnAGpu, FewTokensAreSummedByRole1sUnits) {
    using layout::CombineOn;
    Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 1);
    shape.shared_inter = 256;
    const auto plan_of = [&shape](int tokens, SharedExperts who, CombineUnits combine) {
        PlanOptions options;
        options.shared_experts = who;
        options.combine = combine;
        backend::Plan plan;
        EXPECT_TRUE(choose_plan(shape, tokens, options, plan::gpu_machine(132, 1), &plan).ok());
        return plan.memory;
    };
    const auto expect = [&](CombineOn where, std::uint32_t units, const layout::PlanMemory& plan) {
        EXPECT_EQ(plan.combine_on, where);
        EXPECT_EQ(plan.combine_units(), units);
        EXPECT_EQ(plan.combines_by_signals(), where != CombineOn::kCompute);
    };
    const auto any = SharedExperts::kAuto;
    expect(CombineOn::kDispatch, 8, plan_of(16, any, CombineUnits::kAuto));
    expect(CombineOn::kFollow, 124, plan_of(17, any, CombineUnits::kAuto));
    expect(CombineOn::kCompute, 124, plan_of(1, SharedExperts::kRole4, CombineUnits::kAuto));
    expect(CombineOn::kCompute, 124, plan_of(1, any, CombineUnits::kCompute));
    expect(CombineOn::kDispatch, 8, plan_of(256, any, CombineUnits::kDispatch));
    expect(CombineOn::kAll, 132, plan_of(1, any, CombineUnits::kAll));
    PlanOptions both;
    both.shared_experts = SharedExperts::kRole4;
    for (const CombineUnits units :
         {CombineUnits::kFollow, CombineUnits::kDispatch, CombineUnits::kAll}) {
        both.combine = units;
        backend::Plan plan;
        const Status status = choose_plan(shape, 8, both, plan::gpu_machine(132, 1), &plan);
        EXPECT_EQ(status.code(), Code::kBadConfig);
        EXPECT_NE(status.message().find("role 4 starts when role 1 has "), std::string::npos)
            << status.message();
    }
    PlanOptions on_cpu;
    on_cpu.combine = CombineUnits::kAll;
    backend::Plan plan;
    const Status status = choose_plan(shape, 8, on_cpu, plan::cpu_machine(), &plan);
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("only the GPU backend has"), std::string::npos)
        << status.message();
}

TEST(PlanOnAGpu, SmsAreChosenWhereThereAreSms) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 1);
    PlanOptions options;
    backend::Plan plan;
    ASSERT_TRUE(choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan).ok());
    EXPECT_EQ(plan.placement, SmPlacement::kBalanced);
    for (const auto& [placement, words] :
         {std::pair(SmPlacement::kInOrder, "in order"), std::pair(SmPlacement::kByGpc, "by GPC")}) {
        options.placement = placement;
        ASSERT_TRUE(choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan).ok());
        EXPECT_EQ(plan.placement, placement);
        const Status status = choose_plan(shape, 32, options, plan::cpu_machine(), &plan);
        EXPECT_EQ(status.code(), Code::kBadConfig);
        EXPECT_NE(status.message().find(words + std::string(", which only the GPU backend has")),
                  std::string::npos)
            << status.message();
    }
}

TEST(PlanOnAGpu, UnknownPlacementsAreRefused) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 1);
    PlanOptions options;
    options.placement = static_cast<SmPlacement>(3);
    backend::Plan plan;
    for (const plan::Machine& machine : {plan::gpu_machine(132, 1), plan::cpu_machine()}) {
        const Status status = choose_plan(shape, 32, options, machine, &plan);
        EXPECT_EQ(status.code(), Code::kBadConfig);
        EXPECT_NE(status.message().find("placement = 3 is unknown"), std::string::npos)
            << status.message();
    }
}

TEST(PlanOnAGpu, OtherTaskWidthsAreRefused) {
    const Shape shape = checkpoint::model_shape(checkpoint::known_models().front(), 1);
    backend::Plan plan;
    PlanOptions options;
    options.second_columns = 128;
    const Status status = choose_plan(shape, 32, options, plan::gpu_machine(132, 1), &plan);
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("second_columns = 128 must be 256"), std::string::npos)
        << status.message();
}

TEST(PlanChoice, KeepsWhatIsGiven) {
    PlanOptions options;
    options.name = "mine";
    options.row_block = 24;
    options.ring_blocks = 8;
    options.second_columns = 128;
    options.lead_blocks = 8;
    options.partition = {3, 5};
    options.overlap = true;
    backend::Plan plan;
    ASSERT_TRUE(choose_plan(test::small_shape(2), 40, options, kCpu, &plan).ok());
    EXPECT_EQ(plan.name, "mine");
    EXPECT_EQ(plan.memory.row_block, 24U);
    EXPECT_EQ(plan.memory.ring_blocks, 8U);
    EXPECT_EQ(plan.memory.second_columns, 128U);
    EXPECT_EQ(plan.memory.n2, 2U);
    EXPECT_EQ(plan.lead_blocks, 8U);
    EXPECT_EQ(plan.memory.dispatch_units, 3U);
    EXPECT_EQ(plan.memory.compute_units, 5U);
    EXPECT_TRUE(plan.overlap);
}

TEST(PlanChoice, LargestRingIsCheckedInReasonableTime) {
    PlanOptions options;
    options.row_block = 8;
    options.ring_blocks = plan::kMaxRingBlocks;
    options.lead_blocks = plan::kMaxRingBlocks;
    Shape shape = test::small_shape(1);
    shape.inter = 8192;
    backend::Plan plan;
    EXPECT_TRUE(choose_plan(shape, 40, options, kCpu, &plan).ok());
}

}  // namespace
}  // namespace gcmoe
