// With one resident compute unit per rank, any task that waited for a later one would stall for
// good. So: many plans under the stepper, none may stall, and all give the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "numerics/hash.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using test::join_rows;
using test::spread_inputs;
using test::VirtualLayer;

constexpr int kTotalTokens = 22;
constexpr int kTrials = 300;

Shape shape_of(int num_ranks) {
    Shape shape;
    shape.hidden = 256;
    shape.inter = 256;
    shape.shared_inter = 128;
    shape.num_experts = 4;
    shape.topk = 2;
    shape.num_ranks = num_ranks;
    return shape;
}

// A plan drawn from `word`: ring, lead, blocks, task size, partition.
PlanOptions draw_plan(std::uint64_t word) {
    const auto draw = [&word](int below) {
        word = numerics::splitmix64(word);
        return static_cast<int>(word % static_cast<std::uint64_t>(below));
    };
    PlanOptions plan;
    plan.row_block = 8 * (1 + draw(3));
    plan.ring_blocks = 1 << draw(4);
    plan.lead_blocks = 1 + draw(plan.ring_blocks);
    plan.second_columns = 128 * (1 + draw(2));
    plan.partition = {1 + draw(3), 1 + draw(3)};
    return plan;
}

std::string text_of(const PlanOptions& plan) {
    return fmt::format("row_block {}, ring_blocks {}, lead {}, second_columns {}, {} + {} units",
                       plan.row_block, plan.ring_blocks, plan.lead_blocks, plan.second_columns,
                       plan.partition.dispatch_units, plan.partition.compute_units);
}

std::vector<std::uint16_t> bits(const Shape& shape, const GroupOptions& group,
                                const PlanOptions& plan) {
    OperatorOptions options;
    options.max_tokens = kTotalTokens;
    options.plans = {plan};
    VirtualLayer layer(shape, group, options);
    const auto inputs = spread_inputs(shape, 3, kTotalTokens, kTotalTokens, 0.1);
    const auto first = join_rows(layer.run(inputs));
    EXPECT_EQ(join_rows(layer.run(inputs)), first);
    return first;
}

TEST(DeadlockSearch, OneResidentUnitIsEnough) {
    const auto expected = bits(shape_of(1), {}, {});
    for (int trial = 0; trial < kTrials; ++trial) {
        GroupOptions group;
        group.executor = ExecutorKind::kStepper;
        group.seed = static_cast<std::uint64_t>(trial);
        group.resident_compute_units = 1;
        const PlanOptions plan = draw_plan(group.seed);
        const int num_ranks = 1 << (trial % 3);
        EXPECT_EQ(bits(shape_of(num_ranks), group, plan), expected)
            << "seed " << trial << ", " << num_ranks << " ranks, " << text_of(plan);
    }
}

}  // namespace
}  // namespace gcmoe
