// How ranks of one process find each other: who may join, what must be equal, and that every rank
// hears the same sentence about what is not.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "group/group_state.hpp"
#include "op/refusal.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::packed_layer;
using test::small_shape;

constexpr int kRanks = 2;
constexpr int kCapacity = 4;

OperatorOptions base_options() {
    OperatorOptions options;
    options.max_tokens = kCapacity;
    options.wait_limits = {60.0, 60.0};
    PlanOptions decode;
    decode.name = "decode";
    decode.row_block = 8;
    decode.ring_blocks = 2;
    options.plans = {decode};
    return options;
}

// Two ranks that may differ.
struct Pair {
    std::shared_ptr<Group> group;
    std::unique_ptr<Operator> ops[kRanks];

    Pair() { EXPECT_TRUE(Group::in_process(kRanks, {}, &group).ok()); }
    Status join(int rank, const Shape& shape, const OperatorOptions& options) {
        return Operator::create(shape, packed_layer(shape)[static_cast<std::size_t>(rank)], group,
                                rank, options, &ops[rank]);
    }
    Status launch(int rank) { return ops[rank]->launch(LaunchArgs{}); }
};

struct Difference {
    std::string name;
    std::function<void(Shape*, OperatorOptions*)> change;
    std::vector<std::string> words;  // field with rank 0's value, field with rank 1's value
};
class Mismatch : public testing::TestWithParam<Difference> {};

TEST_P(Mismatch, EveryRankHearsTheSameSentence) {
    Pair pair;
    Shape shape = small_shape(kRanks);
    OperatorOptions options = base_options();
    ASSERT_TRUE(pair.join(0, shape, options).ok());
    GetParam().change(&shape, &options);
    ASSERT_TRUE(pair.join(1, shape, options).ok());
    const Status zero = pair.launch(0);
    const Status one = pair.launch(1);
    expect_refused(zero, Code::kBadConfig, GetParam().words);
    expect_refused(zero, Code::kBadConfig, {"workspace 'default'", "rank 0", "rank 1"});
    EXPECT_EQ(zero.message(), one.message());
    EXPECT_EQ(zero.code(), one.code());
    EXPECT_TRUE(pair.ops[0]->synchronize().ok());
    // Rank 1 comes again with what rank 0 has: the workspace works.
    pair.ops[1].reset();
    ASSERT_TRUE(pair.join(1, small_shape(kRanks), base_options()).ok());
    for (const int rank : {0, 1}) EXPECT_TRUE(pair.launch(rank).ok());
    for (const int rank : {0, 1}) EXPECT_TRUE(pair.ops[rank]->synchronize().ok());
}

using S = Shape;
using O = OperatorOptions;

std::vector<Difference> shape_differences() {
    return {
        {"Hidden", [](S* s, O*) { s->hidden = 384; }, {"hidden = 256", "hidden = 384"}},
        {"Inter", [](S* s, O*) { s->inter = 128; }, {"inter = 256", "inter = 128"}},
        {"Experts", [](S* s, O*) { s->num_experts = 8; }, {"num_experts = 16", "num_experts = 8"}},
        {"Topk", [](S* s, O*) { s->topk = 3; }, {"topk = 4", "topk = 3"}},
        {"Shared",
         [](S* s, O*) { s->shared_inter = 128; },
         {"shared_inter = 0", "shared_inter = 128"}},
        {"Bias", [](S* s, O*) { s->has_bias = true; }, {"has_bias = false", "has_bias = true"}},
        {"Clamp",
         [](S* s, O*) { s->activation.clamp = 7; },
         {"activation.clamp = 10", "activation.clamp = 7"}},
        {"Alpha",
         [](S* s, O*) { s->activation.alpha = 1.702F; },
         {"activation.alpha = 1", "activation.alpha = 1.702"}},
        {"Beta",
         [](S* s, O*) { s->activation.beta = 1; },
         {"activation.beta = 0", "activation.beta = 1"}},
        {"ActivationScale",
         [](S* s, O*) { s->activation_scale = ActivationScale::kUe8m0K32; },
         {"activation_scale = 0", "activation_scale = 1"}},
        {"WeightPlacement",
         [](S* s, O*) { s->weight_placement = WeightPlacement::kAfterSecondGemm; },
         {"weight_placement = 0", "weight_placement = 1"}},
    };
}

std::vector<Difference> option_differences() {
    return {
        {"MaxTokens", [](S*, O* o) { o->max_tokens = 5; }, {"max_tokens = 4", "max_tokens = 5"}},
        {"IndexType",
         [](S*, O* o) { o->index_type = IndexType::kInt32; },
         {"index_type = int64", "index_type = int32"}},
        {"Generation",
         [](S*, O* o) { o->start.generation = 9; },
         {"start.generation = 0", "start.generation = 9"}},
        {"Session",
         [](S*, O* o) { o->start.session = 2; },
         {"start.session = 1", "start.session = 2"}},
        {"NumberOfPlans",
         [](S*, O* o) {
             o->plans.push_back(o->plans[0]);
             o->plans[1].name = "prefill";
         },
         {"num_plans = 1", "num_plans = 2"}},
        {"PlanName",
         [](S*, O* o) { o->plans[0].name = "prefill"; },
         {"plan = decode", "plan = prefill"}},
        {"RowBlock",
         [](S*, O* o) { o->plans[0].row_block = 16; },
         {"decode.row_block = 8", "decode.row_block = 16"}},
        {"RingDepth",
         [](S*, O* o) { o->plans[0].ring_blocks = 4; },
         {"decode.ring_blocks = 2", "decode.ring_blocks = 4"}},
    };
}

std::string difference_name(const testing::TestParamInfo<Difference>& info) {
    return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, Mismatch, testing::ValuesIn(shape_differences()), difference_name);
INSTANTIATE_TEST_SUITE_P(Options, Mismatch, testing::ValuesIn(option_differences()),
                         difference_name);

// What only one rank feels may differ.
TEST(Mismatches, PartitionAndLimitsMayDiffer) {
    Pair pair;
    OperatorOptions options = base_options();
    ASSERT_TRUE(pair.join(0, small_shape(kRanks), options).ok());
    options.plans[0].partition = {3, 4};
    options.wait_limits = {50.0, 40.0};
    options.poison = true;
    options.capture = true;
    ASSERT_TRUE(pair.join(1, small_shape(kRanks), options).ok());
    for (const int rank : {0, 1}) EXPECT_TRUE(pair.launch(rank).ok());
    for (const int rank : {0, 1}) EXPECT_TRUE(pair.ops[rank]->synchronize().ok());
}

}  // namespace
}  // namespace gcmoe
