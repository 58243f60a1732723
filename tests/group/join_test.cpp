// Who may create an operator in a group: every refusal of Group::in_process and Operator::create
// about ranks, weights and workspaces.
#include <gtest/gtest.h>

#include <functional>

#include "op/refusal.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::packed_layer;
using test::small_shape;

OperatorOptions small_options(const std::string& workspace = "default") {
    OperatorOptions options;
    options.workspace = workspace;
    options.max_tokens = 4;
    options.wait_limits = {60.0, 60.0};
    return options;
}

TEST(InProcess, RefusesRankCountsOutsideTheDescriptor) {
    std::shared_ptr<Group> group;
    for (const int ranks : {0, -1, 73}) {
        expect_refused(Group::in_process(ranks, {}, &group), Code::kBadConfig,
                       {"num_ranks = " + std::to_string(ranks), "1..72"});
        EXPECT_EQ(group, nullptr);
    }
    EXPECT_TRUE(Group::in_process(72, {}, &group).ok());
    EXPECT_EQ(group->num_ranks(), 72);
}

TEST(InProcess, RefusesNegativeResidency) {
    GroupOptions options;
    options.resident_compute_units = -1;
    std::shared_ptr<Group> group;
    expect_refused(Group::in_process(2, options, &group), Code::kBadConfig,
                   {"resident_compute_units = -1", "negative"});
}

class Join : public testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(Group::in_process(2, {}, &group_).ok()); }
    Status create(const Shape& shape, std::shared_ptr<const PackedWeights> weights, int rank) {
        return Operator::create(shape, std::move(weights), group_, rank, small_options(), &op_);
    }

    Shape shape_ = small_shape(2);
    std::shared_ptr<Group> group_;
    std::unique_ptr<Operator> op_;
};

TEST_F(Join, NullWeights) {
    expect_refused(create(shape_, nullptr, 0), Code::kBadConfig, {"weights", "null"});
}

TEST_F(Join, NullGroup) {
    group_ = nullptr;
    expect_refused(create(shape_, packed_layer(shape_)[0], 0), Code::kBadConfig, {"group", "null"});
}

TEST_F(Join, RankOutsideTheGroup) {
    for (const int rank : {-1, 2}) {
        expect_refused(create(shape_, packed_layer(shape_)[0], rank), Code::kBadConfig,
                       {"rank = " + std::to_string(rank), "num_ranks = 2"});
    }
}

TEST_F(Join, GroupOfAnotherSize) {
    const Shape four = small_shape(4);
    expect_refused(create(four, packed_layer(four)[1], 1), Code::kBadConfig,
                   {"num_ranks = 4", "group of 2"});
}

TEST_F(Join, WeightsOfAnotherRank) {
    expect_refused(create(shape_, packed_layer(shape_)[1], 0), Code::kBadConfig,
                   {"weights were packed for rank 1 of 2", "not for rank 0 of 2"});
}

TEST_F(Join, WeightsOfAnotherShape) {
    struct Other {
        std::function<void(Shape*)> change;
        std::string packed, wanted;
    };
    for (const Other& other : std::vector<Other>{
             {[](Shape* s) { s->hidden = 384; }, "hidden 384", "hidden 256"},
             {[](Shape* s) { s->inter = 128; }, "inter 128", "inter 256"},
             {[](Shape* s) { s->num_experts = 8; }, "experts 8", "experts 16"},
             {[](Shape* s) { s->shared_inter = 128; }, "shared 128", "shared 0"},
             {[](Shape* s) { s->has_bias = true; }, "with biases", "without biases"},
             {[](Shape* s) { s->activation_scale = ActivationScale::kUe8m0K32; },
              "ue8m0_k32 activations", "fp32_k128 activations"},
         }) {
        Shape packed = shape_;
        other.change(&packed);
        expect_refused(create(shape_, packed_layer(packed)[0], 0), Code::kBadConfig,
                       {"weights were packed for", other.packed, "not for", other.wanted});
    }
}

TEST_F(Join, TwiceIsRefusedAndTheFirstGoesOn) {
    ASSERT_TRUE(create(shape_, packed_layer(shape_)[0], 0).ok());
    std::unique_ptr<Operator> again;
    expect_refused(
        Operator::create(shape_, packed_layer(shape_)[0], group_, 0, small_options(), &again),
        Code::kBadConfig, {"'default'", "rank 0", "joined already", "workspace name"});
    EXPECT_EQ(again, nullptr);
    std::unique_ptr<Operator> other;
    ASSERT_TRUE(
        Operator::create(shape_, packed_layer(shape_)[1], group_, 1, small_options(), &other).ok());
    EXPECT_TRUE(op_->launch({}).ok());
    EXPECT_TRUE(other->launch({}).ok());
    EXPECT_TRUE(op_->synchronize().ok());
    EXPECT_TRUE(other->synchronize().ok());
}

TEST_F(Join, AnotherWorkspaceNameIsAnotherInstance) {
    std::unique_ptr<Operator> ops[2][2];
    for (int w = 0; w < 2; ++w) {
        for (int rank = 0; rank < 2; ++rank) {
            ASSERT_TRUE(Operator::create(shape_, packed_layer(shape_)[std::size_t(rank)], group_,
                                         rank, small_options(w == 0 ? "a" : "b"), &ops[w][rank])
                            .ok());
        }
    }
    for (auto& workspace : ops) {
        for (auto& op : workspace) EXPECT_TRUE(op->launch({}).ok());
    }
    for (auto& workspace : ops) {
        for (auto& op : workspace) EXPECT_TRUE(op->synchronize().ok());
    }
}

TEST_F(Join, MissingRankIsNamedUntilItComes) {
    ASSERT_TRUE(create(shape_, packed_layer(shape_)[0], 0).ok());
    expect_refused(op_->launch({}), Code::kBadConfig,
                   {"'default'", "rank 1 of 2", "has not created its operator"});
    std::unique_ptr<Operator> other;
    ASSERT_TRUE(
        Operator::create(shape_, packed_layer(shape_)[1], group_, 1, small_options(), &other).ok());
    EXPECT_TRUE(op_->launch({}).ok());
    EXPECT_TRUE(other->launch({}).ok());
    EXPECT_TRUE(op_->synchronize().ok());
    EXPECT_TRUE(other->synchronize().ok());
}

// A rank whose operator went away and came back cannot be mistaken for the one the peers know.
TEST_F(Join, ReplacedRankIsFoundByAReset) {
    std::vector<std::unique_ptr<Operator>> ops(2);
    const auto join = [&](int rank) {
        OperatorOptions options = small_options();
        options.wait_limits = {0.2, 0.2};
        return Operator::create(shape_, packed_layer(shape_)[static_cast<std::size_t>(rank)],
                                group_, rank, options, &ops[static_cast<std::size_t>(rank)]);
    };
    const auto launch_both = [&] {
        for (auto& op : ops) EXPECT_TRUE(op->launch({}).ok());
        return std::pair{ops[0]->synchronize().code(), ops[1]->synchronize().code()};
    };
    ASSERT_TRUE(join(0).ok());
    ASSERT_TRUE(join(1).ok());
    EXPECT_EQ(launch_both(), std::pair(Code::kOk, Code::kOk));
    ops[1].reset();
    ASSERT_TRUE(join(1).ok());
    EXPECT_EQ(launch_both(), std::pair(Code::kStalled, Code::kStalled));
    const Status status = Operator::reset({ops[0].get(), ops[1].get()}, false);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(launch_both(), std::pair(Code::kOk, Code::kOk));
}

}  // namespace
}  // namespace gcmoe
