// The same inputs give the same bits, whatever runs them: executor, ranks, row block, ring,
// overlap, SIMD target.
#include <gtest/gtest.h>

#include "support/simd_targets.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using test::join_rows;
using test::small_shape;
using test::spread_inputs;
using test::VirtualLayer;

constexpr int kTotalTokens = 40;

OperatorOptions options_for(int num_ranks, PlanOptions plan) {
    OperatorOptions options;
    options.max_tokens = (kTotalTokens + num_ranks - 1) / num_ranks;
    options.plans = {std::move(plan)};
    options.poison = true;
    options.wait_limits = {60.0, 60.0};
    return options;
}

std::vector<std::uint16_t> bits(const Shape& shape, const GroupOptions& group,
                                const PlanOptions& plan) {
    const OperatorOptions options = options_for(shape.num_ranks, plan);
    VirtualLayer layer(shape, group, options);
    const auto inputs = spread_inputs(shape, 1, kTotalTokens, options.max_tokens, 0.1);
    auto first = join_rows(layer.run(inputs));
    EXPECT_EQ(first, join_rows(layer.run(inputs))) << "two runs differ";
    return first;
}

PlanOptions plan_with(int row_block, int ring_blocks, bool overlap = true) {
    PlanOptions plan;
    plan.row_block = row_block;
    plan.ring_blocks = ring_blocks;
    plan.overlap = overlap;
    return plan;
}

// Many ranks: as many experts as the largest group divides by.
Shape wide_shape(int num_ranks) {
    Shape shape = small_shape(num_ranks, 128);
    shape.num_experts = 144;
    return shape;
}

class SameBits : public testing::Test {
  protected:
    static const std::vector<std::uint16_t>& expected() {
        static const std::vector<std::uint16_t> y = bits(small_shape(1, 128), {}, plan_with(16, 4));
        return y;
    }
};

TEST_F(SameBits, AnyNumberOfRanks) {
    for (const int ranks : {2, 4, 8, 16}) {
        EXPECT_EQ(bits(small_shape(ranks, 128), {}, plan_with(16, 4)), expected())
            << ranks << " ranks";
    }
}

TEST_F(SameBits, SixteenAndSeventyTwoRanks) {
    const auto one = bits(wide_shape(1), {}, plan_with(16, 8));
    EXPECT_EQ(bits(wide_shape(16), {}, plan_with(8, 2)), one);
    EXPECT_EQ(bits(wide_shape(72), {}, plan_with(8, 2)), one);
}

TEST_F(SameBits, AnyRowBlockAndRing) {
    for (const int row_block : {8, 16, 24, 32, 64}) {
        for (const int ring_blocks : {1, 2, 8}) {
            EXPECT_EQ(bits(small_shape(4, 128), {}, plan_with(row_block, ring_blocks)), expected())
                << "row_block " << row_block << ", ring_blocks " << ring_blocks;
        }
    }
}

TEST_F(SameBits, OverlapOff) {
    EXPECT_EQ(bits(small_shape(4, 128), {}, plan_with(16, 0, false)), expected());
}

TEST_F(SameBits, AnyPartition) {
    for (const int dispatch : {1, 2, 3}) {
        for (const int compute : {1, 4}) {
            PlanOptions plan = plan_with(16, 2);
            plan.partition = {dispatch, compute};
            EXPECT_EQ(bits(small_shape(4, 128), {}, plan), expected())
                << dispatch << " + " << compute;
        }
    }
}

TEST_F(SameBits, CombineOnRole1sUnits) {
    for (const int dispatch : {1, 3}) {
        for (const bool overlap : {true, false}) {
            PlanOptions plan = plan_with(16, overlap ? 2 : 0, overlap);
            plan.partition = {dispatch, 2};
            plan.combine = CombineUnits::kDispatch;
            EXPECT_EQ(bits(small_shape(4, 128), {}, plan), expected()) << dispatch << " units";
        }
    }
}

TEST_F(SameBits, AnySimdTarget) {
    const auto before = expected();
    test::for_each_target(
        [&] { EXPECT_EQ(bits(small_shape(4, 128), {}, plan_with(24, 2)), before); });
}

TEST_F(SameBits, StepperWithTwentySeeds) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        GroupOptions group;
        group.executor = ExecutorKind::kStepper;
        group.seed = seed;
        group.resident_compute_units = static_cast<int>(seed % 3);
        EXPECT_EQ(bits(small_shape(4, 128), group, plan_with(16, 2)), expected())
            << "seed " << seed;
    }
}

}  // namespace
}  // namespace gcmoe
