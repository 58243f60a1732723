// Routing at its corners: unused slots, duplicates, ranks without tokens, one expert for all, token
// counts that change, bad numbers in one row.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::plan_with;
using test::row_is_finite;
using test::Rows;
using test::small_shape;
using test::VirtualLayer;

constexpr int kCapacity = 9;
constexpr std::size_t kTopk = 4;
constexpr std::size_t kHidden = 256;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Shape shape_of(int ranks, int shared = 128) {
    Shape shape = small_shape(ranks, shared);
    shape.num_experts = 12;
    return shape;
}

OperatorOptions tight_options(int capacity = kCapacity) {
    OperatorOptions options = options_for(capacity);
    options.plans = {plan_with("tight", 8, 2)};
    return options;
}

class Routing : public test::BothExecutors {};

TEST_P(Routing, UnusedSlotsNeverMatter) {
    const Shape shape = shape_of(3);
    AllInputs inputs = inputs_with(shape, 31, {7, 4, 9}, kCapacity, 0.5);
    for (auto& rank : inputs) {
        for (std::size_t slot = 0; slot < rank.topk_idx.size(); ++slot) {
            if (rank.topk_idx[slot] < 0) rank.topk_weight[slot] = 0.0F;
        }
    }
    const auto expected = expected_bits(shape, inputs);
    VirtualLayer layer(shape, group(), tight_options());
    for (const float weight : {kNan, kInfinity, -kInfinity, 3e38F}) {
        for (auto& rank : inputs) {
            for (std::size_t slot = 0; slot < rank.topk_idx.size(); ++slot) {
                if (rank.topk_idx[slot] < 0) rank.topk_weight[slot] = weight;
            }
        }
        EXPECT_EQ(layer.run(inputs), expected) << weight;
    }
}

TEST_P(Routing, TokenWithoutSlotsIsZeroOrTheSharedPart) {
    for (const int shared : {0, 128}) {
        const Shape shape = shape_of(2, shared);
        AllInputs inputs = inputs_with(shape, 32, {3, 2}, kCapacity);
        for (std::size_t k = 0; k < kTopk; ++k) inputs[0].topk_idx[kTopk + k] = -1;
        VirtualLayer layer(shape, group(), tight_options());
        const auto y = layer.run(inputs);
        EXPECT_EQ(y, expected_bits(shape, inputs));
        const Rows row(y[0].begin() + kHidden, y[0].begin() + 2 * kHidden);
        EXPECT_EQ(row == Rows(kHidden, 0), shared == 0);
    }
}

TEST_P(Routing, EverySlotUnusedEverywhere) {
    const Shape shape = shape_of(3, 0);
    AllInputs inputs = inputs_with(shape, 33, {4, 1, 9}, kCapacity, 1.1);
    VirtualLayer layer(shape, group(), tight_options());
    for (const Rows& rows : layer.run(inputs)) EXPECT_EQ(rows, Rows(rows.size(), 0));
    EXPECT_EQ(layer.op(0).statistics().rows, 0U);
}

// The same expert twice in a token: two slots, each with its own weight; the sum is as if two
// experts had given the same row.
TEST_P(Routing, DuplicatesAreTwoSlots) {
    const Shape shape = shape_of(2, 0);
    AllInputs inputs = inputs_with(shape, 34, {1, 1}, kCapacity);
    const std::vector<std::int64_t> twice = {7, 7, -1, -1};
    const std::vector<std::int64_t> once = {7, -1, -1, -1};
    for (auto& rank : inputs) {
        std::copy(twice.begin(), twice.end(), rank.topk_idx.begin());
        rank.topk_weight[0] = rank.topk_weight[1] = 0.75F;
    }
    VirtualLayer layer(shape, group(), tight_options());
    const auto both = layer.run(inputs);
    EXPECT_EQ(layer.op(1).statistics().rows, 4U) << "expert 7 got two rows of each rank";
    for (auto& rank : inputs) std::copy(once.begin(), once.end(), rank.topk_idx.begin());
    const auto one = layer.run(inputs);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        for (std::size_t i = 0; i < kHidden; ++i) {
            const float single = numerics::bf16_to_float(one[rank][i]);
            EXPECT_EQ(numerics::bf16_to_float(both[rank][i]), 2 * single) << rank << ' ' << i;
        }
    }
}

TEST_P(Routing, WholeTopkIsOneExpert) {
    const Shape shape = shape_of(3);
    AllInputs inputs = inputs_with(shape, 35, {9, 9, 9}, kCapacity);
    for (auto& rank : inputs) std::fill(rank.topk_idx.begin(), rank.topk_idx.end(), 5);
    VirtualLayer layer(shape, group(), tight_options());
    EXPECT_EQ(layer.run(inputs), expected_bits(shape, inputs));
    EXPECT_EQ(layer.op(0).statistics().rows, 0U);
    EXPECT_EQ(layer.op(1).statistics().rows, 3U * 9 * kTopk) << "ranks 0 and 2 got nothing";
}

// All combinations of tokens 0 and n on three ranks, one workspace for all.
TEST_P(Routing, RanksWithoutTokens) {
    const Shape shape = shape_of(3);
    VirtualLayer layer(shape, group(), tight_options());
    for (int mask = 0; mask < 8; ++mask) {
        const std::vector<int> tokens = {(mask & 1) != 0 ? 3 : 0, (mask & 2) != 0 ? 1 : 0,
                                         (mask & 4) != 0 ? kCapacity : 0};
        const AllInputs inputs = inputs_with(shape, 36, tokens, kCapacity, 0.1);
        EXPECT_EQ(layer.run(inputs), expected_bits(shape, inputs)) << "mask " << mask;
    }
    EXPECT_EQ(layer.op(0).statistics().generation, 8U);
}

TEST_P(Routing, TokenCountsThatChange) {
    const int most = on_threads() ? 256 : 40;
    Shape shape = shape_of(2);
    shape.hidden = shape.inter = 128;
    VirtualLayer layer(shape, group(), tight_options(most));
    for (const auto& tokens : std::vector<std::vector<int>>{
             {most, most}, {1, most}, {0, 1}, {0, 0}, {1, 0}, {most, 0}, {most, most}}) {
        const AllInputs inputs = inputs_with(shape, 37, tokens, most, 0.2);
        EXPECT_EQ(layer.run(inputs), expected_bits(shape, inputs))
            << tokens[0] << " and " << tokens[1];
    }
}

// One live row is broken: exactly its token shows it, on all ranks and in the next launch too.
TEST_P(Routing, BadNumbersStayInTheirToken) {
    const Shape shape = shape_of(3);
    const AllInputs good = inputs_with(shape, 38, {4, 6, 5}, kCapacity);
    const auto expected = expected_bits(shape, good);
    VirtualLayer layer(shape, group(), tight_options());
    const auto damage = [&](const std::function<void(reference::RankInputs*)>& change) {
        AllInputs inputs = good;
        change(&inputs[1]);
        const auto y = layer.run(inputs);
        EXPECT_EQ(y[0], expected[0]);
        EXPECT_EQ(y[2], expected[2]);
        for (int token = 0; token < 6; ++token) {
            EXPECT_EQ(row_is_finite(y[1], token, kHidden), token != 2) << "token " << token;
            if (token == 2) continue;
            const auto first = static_cast<std::ptrdiff_t>(kHidden) * token;
            EXPECT_TRUE(std::equal(y[1].begin() + first, y[1].begin() + first + kHidden,
                                   expected[1].begin() + first))
                << "token " << token;
        }
        EXPECT_EQ(layer.run(good), expected) << "it stayed in the ring";
    };
    damage([](auto* rank) { rank->x[2 * kHidden + 17] = 0x7F; });
    damage([](auto* rank) { rank->x_scale[2 * kHidden / 128] = numerics::float_to_bits(kNan); });
    damage(
        [](auto* rank) { rank->x_scale[2 * kHidden / 128] = numerics::float_to_bits(kInfinity); });
    damage([](auto* rank) { rank->topk_weight[2 * kTopk + 3] = kNan; });
    damage([](auto* rank) { rank->topk_weight[2 * kTopk + 1] = kInfinity; });
}

GCMOE_ON_BOTH_EXECUTORS(Routing);

}  // namespace
}  // namespace gcmoe
