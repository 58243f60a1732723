// Expert ids: both widths, unused slots, ids that name no expert.
#include <gtest/gtest.h>

#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expect_refused;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::Rows;
using test::small_shape;
using test::VirtualLayer;

constexpr int kRanks = 3;
constexpr int kCapacity = 8;
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

OperatorOptions options_of(IndexType type) {
    OperatorOptions options = options_for(kCapacity);
    options.index_type = type;
    return options;
}

// Launches on all ranks; statuses of the synchronize calls.
std::vector<Status> run_all(VirtualLayer* layer, const OperatorOptions& options,
                            const AllInputs& inputs, std::vector<Rows>* y) {
    y->resize(inputs.size());
    for (int rank = 0; rank < kRanks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        EXPECT_TRUE(test::launch_rank(layer, rank, options, inputs[at], &(*y)[at]).ok());
    }
    std::vector<Status> statuses;
    for (Operator* op : layer->all()) statuses.push_back(op->synchronize());
    return statuses;
}

Shape three_rank_shape() {
    Shape shape = small_shape(kRanks, 128);
    shape.num_experts = 12;
    return shape;
}

TEST(Ids, BothWidthsGiveTheSameBits) {
    const Shape shape = three_rank_shape();
    const AllInputs inputs = inputs_with(shape, 11, {5, 8, 1}, kCapacity, 0.3);
    const auto expected = expected_bits(shape, inputs);
    for (const IndexType type : {IndexType::kInt32, IndexType::kInt64}) {
        VirtualLayer layer(shape, {}, options_of(type));
        EXPECT_EQ(layer.run(inputs), expected);
    }
}

TEST(Ids, EveryNegativeIdIsAnUnusedSlot) {
    const Shape shape = three_rank_shape();
    AllInputs inputs = inputs_with(shape, 12, {3, 3, 3}, kCapacity);
    inputs[1].topk_idx[2] = -1;
    const auto expected = expected_bits(shape, inputs);
    for (const std::int64_t id : {std::int64_t{-2}, std::int64_t{-2147483648LL}, -kHuge}) {
        inputs[1].topk_idx[2] = id;
        VirtualLayer layer(shape, {}, options_of(IndexType::kInt64));
        EXPECT_EQ(layer.run(inputs), expected) << id;
    }
    inputs[1].topk_idx[2] = -2147483648LL;
    VirtualLayer layer(shape, {}, options_of(IndexType::kInt32));
    EXPECT_EQ(layer.run(inputs), expected);
}

struct BadId {
    IndexType type;
    std::int64_t id;
};
class BadIds : public testing::TestWithParam<BadId> {};

// Token 2, slot 1 of rank 1 names no expert.
TEST_P(BadIds, CountAsUnusedAndAreReportedOnce) {
    const Shape shape = three_rank_shape();
    AllInputs inputs = inputs_with(shape, 13, {4, 5, 2}, kCapacity);
    const std::size_t slot = 2 * 4 + 1;
    inputs[1].topk_idx[slot] = -1;
    const auto expected = expected_bits(shape, inputs);
    inputs[1].topk_idx[slot] = GetParam().id;
    const OperatorOptions options = options_of(GetParam().type);
    VirtualLayer layer(shape, {}, options);
    std::vector<Rows> y;
    const auto statuses = run_all(&layer, options, inputs, &y);
    EXPECT_TRUE(statuses[0].ok()) << statuses[0].message();
    EXPECT_TRUE(statuses[2].ok()) << statuses[2].message();
    expect_refused(statuses[1], Code::kBadIndex,
                   {"rank 1", "topk_idx = " + std::to_string(GetParam().id), "token 2", "slot 1",
                    "num_experts = 12", "generation 1"});
    EXPECT_EQ(y, expected);
    EXPECT_TRUE(layer.op(1).synchronize().ok()) << "told twice";
    EXPECT_EQ(layer.run(inputs_with(shape, 14, {1, 2, 3}, kCapacity)),
              expected_bits(shape, inputs_with(shape, 14, {1, 2, 3}, kCapacity)))
        << "the workspace goes on";
}

INSTANTIATE_TEST_SUITE_P(, BadIds,
                         testing::Values(BadId{IndexType::kInt32, 12},
                                         BadId{IndexType::kInt32, 2147483647},
                                         BadId{IndexType::kInt64, 12},
                                         BadId{IndexType::kInt64, (std::int64_t{1} << 32) + 3},
                                         BadId{IndexType::kInt64, kHuge},
                                         BadId{IndexType::kInt64, 0x7FFFFFFFFFFFFFFF}));

TEST(Ids, FirstBadIdOfSeveralLaunchesIsTold) {
    const Shape shape = small_shape(1);
    const OperatorOptions options = options_of(IndexType::kInt64);
    VirtualLayer layer(shape, {}, options);
    AllInputs inputs = inputs_with(shape, 15, {3}, kCapacity);
    Rows y;
    ASSERT_TRUE(test::launch_rank(&layer, 0, options, inputs[0], &y).ok());
    ASSERT_TRUE(layer.op(0).synchronize().ok());
    inputs[0].topk_idx[5] = 99;
    inputs[0].topk_idx[9] = 98;
    ASSERT_TRUE(test::launch_rank(&layer, 0, options, inputs[0], &y).ok());
    LaunchArgs args;
    args.num_tokens = 3;
    args.y = y.data();
    ASSERT_TRUE(layer.op(0).launch(args).ok());
    expect_refused(layer.op(0).synchronize(), Code::kBadIndex,
                   {"topk_idx = 99", "token 1", "slot 1", "generation 2"});
    EXPECT_TRUE(layer.op(0).synchronize().ok());
}

// Rows past num_tokens are nobody's: bad ids there are never seen.
TEST(Ids, IdsPastTheTokensAreNotRead) {
    const Shape shape = small_shape(1);
    AllInputs inputs = inputs_with(shape, 16, {3}, kCapacity);
    for (std::size_t slot = 3 * 4; slot < inputs[0].topk_idx.size(); ++slot) {
        inputs[0].topk_idx[slot] = kHuge;
    }
    VirtualLayer layer(shape, {}, options_of(IndexType::kInt64));
    EXPECT_EQ(layer.run(inputs), expected_bits(shape, inputs));
}

class CheckInputs : public testing::Test {
  protected:
    void stage(std::size_t slot, std::int64_t id) {
        AllInputs inputs = inputs_with(small_shape(2), 17, {kCapacity, kCapacity}, kCapacity, 0.2);
        inputs[0].topk_idx[slot] = id;
        test::stage_inputs(&layer_.op(0), IndexType::kInt64, small_shape(2), inputs[0]);
    }
    VirtualLayer layer_{small_shape(2), {}, options_of(IndexType::kInt64)};
};

TEST_F(CheckInputs, AcceptsUsedAndUnusedSlots) {
    stage(0, -1);
    EXPECT_TRUE(layer_.op(0).check_inputs(kCapacity).ok());
    EXPECT_TRUE(layer_.op(0).check_inputs(0).ok());
}

TEST_F(CheckInputs, NamesTokenSlotId) {
    stage(3 * 4 + 2, kHuge);
    expect_refused(layer_.op(0).check_inputs(kCapacity), Code::kBadIndex,
                   {"rank 0", "topk_idx = 1099511627776", "token 3", "slot 2", "num_experts = 16"});
    EXPECT_TRUE(layer_.op(0).check_inputs(3).ok()) << "token 3 is not looked at";
}

TEST_F(CheckInputs, RefusesTokensOutsideTheCapacity) {
    expect_refused(layer_.op(0).check_inputs(-1), Code::kBadInput, {"num_tokens = -1", "0..8"});
    expect_refused(layer_.op(0).check_inputs(9), Code::kBadInput, {"num_tokens = 9", "0..8"});
}

}  // namespace
}  // namespace gcmoe
