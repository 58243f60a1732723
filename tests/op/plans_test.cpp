// Several plans in one workspace and several workspaces in one group, used in turns: each keeps its
// own signals, and nobody's history shows in the bits.
#include <gtest/gtest.h>

#include "numerics/hash.hpp"
#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::plan_with;
using test::Rows;
using test::small_shape;
using test::VirtualLayer;

constexpr int kCapacity = 20;

int draw(int round, int salt, int limit) {
    const auto word =
        numerics::hash_combine(static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(salt));
    return static_cast<int>(word % static_cast<std::uint64_t>(limit));
}

std::vector<PlanOptions> different_plans() {
    std::vector<PlanOptions> plans = {plan_with("narrow", 8, 1), plan_with("wide", 64, 2),
                                      plan_with("deep", 16, 16), plan_with("serial", 24, 0)};
    plans[0].partition = {2, 3};
    plans[1].partition = {1, 1};
    plans[2].second_columns = 128;
    plans[2].lead_blocks = 5;
    plans[3].overlap = false;
    return plans;
}

class Plans : public test::BothExecutors {};

TEST_P(Plans, TakeTurnsInOneWorkspace) {
    const Shape shape = small_shape(2, 128);
    OperatorOptions options = options_for(kCapacity);
    options.plans = different_plans();
    VirtualLayer layer(shape, group(), options);
    for (int round = 0; round < 24; ++round) {
        const auto& plan = options.plans[static_cast<std::size_t>(draw(round, 1, 4))].name;
        const AllInputs inputs =
            inputs_with(shape, 50, {draw(round, 2, kCapacity + 1), draw(round, 3, 4)}, kCapacity);
        EXPECT_EQ(layer.run(inputs, plan), expected_bits(shape, inputs))
            << "round " << round << ", plan " << plan;
    }
    EXPECT_EQ(layer.op(0).statistics().generation, 24U);
}

TEST_P(Plans, SixteenOfThem) {
    const Shape shape = small_shape(2);
    OperatorOptions options = options_for(kCapacity);
    for (int i = 0; i < 16; ++i) {
        options.plans.push_back(plan_with("plan" + std::to_string(i), 8 + 8 * (i % 8), 1 << i % 4));
    }
    VirtualLayer layer(shape, group(), options);
    const AllInputs inputs = inputs_with(shape, 51, {kCapacity, 3}, kCapacity);
    const auto expected = expected_bits(shape, inputs);
    for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(layer.run(inputs, "plan" + std::to_string(i * 5 % 16)), expected) << i;
    }
}

TEST_P(Plans, EmptyNameIsTheFirst) {
    const Shape shape = small_shape(1);
    OperatorOptions options = options_for(kCapacity);
    options.plans = {plan_with("first", 8, 4), plan_with("second", 16, 4)};
    VirtualLayer layer(shape, group(), options);
    const AllInputs inputs = inputs_with(shape, 52, {kCapacity}, kCapacity);
    layer.run(inputs);
    const std::uint64_t first = layer.op(0).statistics().blocks;
    layer.run(inputs, "first");
    EXPECT_EQ(layer.op(0).statistics().blocks, 2 * first);
    layer.run(inputs, "second");
    EXPECT_LT(layer.op(0).statistics().blocks, 3 * first) << "wider blocks, fewer of them";
}

// Plans that differ between launches queued without a wait.
TEST_P(Plans, QueuedTogether) {
    const Shape shape = small_shape(2, 128);
    OperatorOptions options = options_for(kCapacity);
    options.plans = different_plans();
    VirtualLayer layer(shape, group(), options);
    const AllInputs inputs = inputs_with(shape, 53, {kCapacity, 7}, kCapacity);
    const auto expected = expected_bits(shape, inputs);
    constexpr std::size_t kLaunches = 12;
    std::vector<std::vector<Rows>> y(kLaunches, std::vector<Rows>(2));
    for (std::size_t launch = 0; launch < kLaunches; ++launch) {
        for (int rank = 0; rank < 2; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            if (launch == 0) {
                test::stage_inputs(&layer.op(rank), options.index_type, shape, inputs[at]);
            }
            y[launch][at] = Rows(expected[at].size(), 0xFFFF);
            LaunchArgs args;
            args.num_tokens = inputs[at].num_tokens;
            args.y = y[launch][at].data();
            args.plan = options.plans[launch * 3 % 4].name;
            ASSERT_TRUE(layer.op(rank).launch(args).ok());
        }
    }
    for (Operator* op : layer.all()) ASSERT_TRUE(op->synchronize().ok());
    for (const auto& rows : y) EXPECT_EQ(rows, expected);
}

// Different shapes, capacities and index types side by side in one group.
TEST_P(Plans, WorkspacesOfDifferentShapesInOneGroup) {
    std::shared_ptr<Group> group_of_two;
    ASSERT_TRUE(Group::in_process(2, group(), &group_of_two).ok());
    std::vector<Shape> shapes(3, small_shape(2, 128));
    shapes[1].hidden = 384;
    shapes[1].num_experts = 6;
    shapes[1].topk = 2;
    shapes[2].inter = 128;
    shapes[2].shared_inter = 0;
    std::vector<std::vector<std::unique_ptr<Operator>>> ops(3);
    std::vector<OperatorOptions> options(3);
    for (std::size_t w = 0; w < 3; ++w) {
        options[w] = options_for(8 + 4 * static_cast<int>(w));
        options[w].workspace = "layer" + std::to_string(w);
        options[w].index_type = w == 1 ? IndexType::kInt32 : IndexType::kInt64;
        ops[w].resize(2);
        for (std::size_t rank = 0; rank < 2; ++rank) {
            ASSERT_TRUE(Operator::create(shapes[w], test::packed_layer(shapes[w])[rank],
                                         group_of_two, static_cast<int>(rank), options[w],
                                         &ops[w][rank])
                            .ok());
        }
    }
    for (int round = 0; round < 9; ++round) {
        std::vector<std::vector<Rows>> y(3, std::vector<Rows>(2));
        std::vector<AllInputs> inputs;
        for (std::size_t w = 0; w < 3; ++w) {
            inputs.push_back(inputs_with(shapes[w], 54, {draw(round, 4, 9), draw(round, 5, 9)},
                                         options[w].max_tokens));
            for (std::size_t rank = 0; rank < 2; ++rank) {
                test::stage_inputs(ops[w][rank].get(), options[w].index_type, shapes[w],
                                   inputs[w][rank]);
                LaunchArgs args;
                args.num_tokens = inputs[w][rank].num_tokens;
                y[w][rank].resize(static_cast<std::size_t>(args.num_tokens) *
                                      static_cast<std::size_t>(shapes[w].hidden) +
                                  1);
                args.y = y[w][rank].data();
                ASSERT_TRUE(ops[w][rank]->launch(args).ok());
            }
        }
        for (std::size_t w = 0; w < 3; ++w) {
            for (std::size_t rank = 0; rank < 2; ++rank) {
                ASSERT_TRUE(ops[w][rank]->synchronize().ok());
                y[w][rank].pop_back();
            }
            EXPECT_EQ(y[w], expected_bits(shapes[w], inputs[w])) << "workspace " << w;
        }
    }
}

GCMOE_ON_BOTH_EXECUTORS(Plans);

}  // namespace
}  // namespace gcmoe
