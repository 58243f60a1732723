// Statistics against a count by hand, and times that can be true.
#include <gtest/gtest.h>

#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::inputs_with;
using test::options_for;
using test::plan_with;
using test::small_shape;
using test::VirtualLayer;

constexpr int kRanks = 3;
constexpr int kCapacity = 16;

// Rows per global expert.
std::vector<std::uint64_t> count_rows(const Shape& shape, const AllInputs& inputs) {
    std::vector<std::uint64_t> rows(static_cast<std::size_t>(shape.num_experts));
    for (const reference::RankInputs& rank : inputs) {
        const auto slots = static_cast<std::size_t>(rank.num_tokens * shape.topk);
        for (std::size_t slot = 0; slot < slots; ++slot) {
            const std::int64_t id = rank.topk_idx[slot];
            if (reference::slot_is_live(shape, id)) ++rows[static_cast<std::size_t>(id)];
        }
    }
    return rows;
}

class StatisticsOf : public test::BothExecutors {
  protected:
    static Shape shape() {
        Shape shape = small_shape(kRanks);
        shape.num_experts = 12;
        return shape;
    }
    static OperatorOptions options() {
        OperatorOptions options = options_for(kCapacity);
        options.plans = {plan_with("a", 8, 2), plan_with("b", 16, 4)};
        return options;
    }
};

TEST_P(StatisticsOf, RowsAndBlocksAreSumsSinceCreation) {
    VirtualLayer layer(shape(), group(), options());
    std::vector<std::uint64_t> rows(12);
    std::vector<std::uint64_t> blocks(kRanks);
    for (int round = 0; round < 5; ++round) {
        const int row_block = round % 2 == 0 ? 8 : 16;
        const AllInputs inputs =
            inputs_with(shape(), static_cast<std::uint64_t>(60 + round),
                        {16 - round, 3 * round, round == 3 ? 0 : 9}, kCapacity, 0.2);
        layer.run(inputs, round % 2 == 0 ? "a" : "b");
        const auto more = count_rows(shape(), inputs);
        for (std::size_t expert = 0; expert < 12; ++expert) {
            rows[expert] += more[expert];
            blocks[expert / 4] += (more[expert] + row_block - 1) / row_block;
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            const Statistics statistics = layer.op(rank).statistics();
            const auto first = static_cast<std::size_t>(rank) * 4;
            std::uint64_t sum = 0;
            for (std::size_t e = 0; e < 4; ++e) {
                EXPECT_EQ(statistics.expert_rows[e], rows[first + e]) << rank << ", expert " << e;
                sum += rows[first + e];
            }
            EXPECT_EQ(statistics.expert_rows.size(), 4U);
            EXPECT_EQ(statistics.rows, sum);
            EXPECT_EQ(statistics.blocks, blocks[static_cast<std::size_t>(rank)]);
            EXPECT_EQ(statistics.generation, static_cast<std::uint32_t>(round + 1));
            EXPECT_EQ(statistics.session, 1U);
        }
    }
}

TEST_P(StatisticsOf, LapsAreWholeTurnsOfThePlansRing) {
    VirtualLayer layer(shape(), group(), options());
    std::uint64_t blocks_a = 0;
    for (int round = 0; round < 4; ++round) {
        const AllInputs inputs = inputs_with(shape(), 70, {16, 16, 16}, kCapacity);
        const std::uint64_t before = layer.op(0).statistics().blocks;
        layer.run(inputs, "a");
        blocks_a += layer.op(0).statistics().blocks - before;
        EXPECT_EQ(layer.op(0).statistics().laps, blocks_a / 2);
        layer.run(inputs, "b");
        EXPECT_LT(layer.op(0).statistics().laps, blocks_a / 2) << "of the last launch's plan";
    }
}

TEST_P(StatisticsOf, StartStateCountsFromItself) {
    OperatorOptions near_wrap = options();
    near_wrap.start.generation = 0xFFFFFFFE;
    near_wrap.start.session = 7;
    near_wrap.start.s0 = (std::uint64_t{1} << 32) * 2 - 6;
    VirtualLayer layer(shape(), group(), near_wrap);
    const AllInputs inputs = inputs_with(shape(), 71, {16, 16, 16}, kCapacity);
    const std::uint32_t expected[3] = {0xFFFFFFFF, 0, 1};
    for (const std::uint32_t generation : expected) {
        EXPECT_EQ(layer.run(inputs), test::expected_bits(shape(), inputs));
        const Statistics statistics = layer.op(1).statistics();
        EXPECT_EQ(statistics.generation, generation);
        EXPECT_EQ(statistics.session, 7U);
        EXPECT_EQ(statistics.laps, statistics.blocks / 2);
    }
}

TEST_P(StatisticsOf, NothingBeforeTheFirstLaunch) {
    VirtualLayer layer(shape(), group(), options());
    const Statistics statistics = layer.op(0).statistics();
    EXPECT_EQ(statistics.generation, 0U);
    EXPECT_EQ(statistics.rows, 0U);
    EXPECT_EQ(statistics.blocks, 0U);
    EXPECT_EQ(statistics.laps, 0U);
    EXPECT_EQ(statistics.expert_rows, std::vector<std::uint64_t>(4));
    EXPECT_EQ(statistics.times.role3_end_us, -1);
}

void expect_ordered(const LaunchTimes& times) {
    EXPECT_GE(times.role1_first_row_us, 0);
    EXPECT_GE(times.role1_last_row_us, times.role1_first_row_us);
    EXPECT_GE(times.role1_end_us, times.role1_last_row_us);
    EXPECT_GE(times.role2_first_task_us, times.role1_first_row_us);
    EXPECT_GE(times.role2_end_us, times.role2_first_task_us);
    EXPECT_GE(times.role3_begin_us, times.role2_end_us);
    EXPECT_GE(times.role3_begin_us, times.role1_end_us);
    EXPECT_GE(times.role3_end_us, times.role3_begin_us);
}

TEST_P(StatisticsOf, TimesAreInTheRolesOrder) {
    VirtualLayer layer(shape(), group(), options());
    const test::Stopwatch watch;
    for (const char* plan : {"a", "b", "a"}) {
        layer.run(inputs_with(shape(), 72, {16, 16, 16}, kCapacity), plan);
        for (Operator* op : layer.all()) {
            expect_ordered(op->statistics().times);
            if (on_threads()) {
                EXPECT_LT(op->statistics().times.role3_end_us, 1e6 * watch.seconds());
            }
        }
    }
}

TEST_P(StatisticsOf, TimesOfALaunchWithoutRowsForget) {
    VirtualLayer layer(shape(), group(), options());
    layer.run(inputs_with(shape(), 73, {16, 16, 16}, kCapacity));
    layer.run(inputs_with(shape(), 73, {0, 0, 0}, kCapacity));
    const LaunchTimes times = layer.op(0).statistics().times;
    EXPECT_EQ(times.role1_first_row_us, -1);
    EXPECT_EQ(times.role1_last_row_us, -1);
    EXPECT_EQ(times.role2_first_task_us, -1);
    EXPECT_GE(times.role1_end_us, 0);
    EXPECT_GE(times.role3_begin_us, times.role1_end_us);
    EXPECT_GE(times.role3_end_us, times.role3_begin_us);
}

GCMOE_ON_BOTH_EXECUTORS(StatisticsOf);

}  // namespace
}  // namespace gcmoe
