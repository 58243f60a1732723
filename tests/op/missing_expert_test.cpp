// Routing to an expert whose weights were left out of packing: found by check_inputs, and reported
// by the launch, on every rank and never as a crash.
#include <gtest/gtest.h>

#include "checkpoint/generated_layer.hpp"
#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expect_refused;
using test::inputs_with;
using test::options_for;
using test::Rows;
using test::small_shape;

constexpr int kRanks = 2;
constexpr int kCapacity = 4;
constexpr int kMissing = 13;  // of rank 1, local index 5

// All experts but one.
class MissingExpert : public test::BothExecutors {
  protected:
    void SetUp() override {
        std::unique_ptr<WeightSource> source;
        checkpoint::GeneratedLayer layer;
        layer.shape = shape_;
        ASSERT_TRUE(checkpoint::open_generated_layer(layer, &source).ok());
        ASSERT_TRUE(Group::in_process(kRanks, group(), &group_).ok());
        PackOptions pack;
        for (int expert = 0; expert < shape_.num_experts; ++expert) {
            if (expert != kMissing) pack.only_experts.push_back(expert);
        }
        for (int rank = 0; rank < kRanks; ++rank) {
            std::shared_ptr<const PackedWeights> weights;
            ASSERT_TRUE(PackedWeights::pack(*source, shape_, rank, pack, &weights, nullptr).ok());
            EXPECT_EQ(weights->has_expert(kMissing), false);
            ASSERT_TRUE(
                Operator::create(shape_, weights, group_, rank, options_, &ops_[rank]).ok());
        }
        inputs_ = inputs_with(shape_, 21, {4, 4}, kCapacity);
        for (auto& rank : inputs_) {
            for (std::int64_t& id : rank.topk_idx) id = id == kMissing ? 0 : id;
        }
    }
    // Statuses of one launch on all ranks.
    std::vector<Status> run() {
        std::vector<Rows> y(kRanks, Rows(std::size_t{kCapacity} * 256));
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            test::stage_inputs(ops_[rank].get(), options_.index_type, shape_, inputs_[rank]);
            LaunchArgs args;
            args.num_tokens = inputs_[rank].num_tokens;
            args.y = y[rank].data();
            EXPECT_TRUE(ops_[rank]->launch(args).ok());
        }
        return {ops_[0]->synchronize(), ops_[1]->synchronize()};
    }

    Shape shape_ = small_shape(kRanks);
    OperatorOptions options_ = options_for(kCapacity);
    std::shared_ptr<Group> group_;
    std::unique_ptr<Operator> ops_[kRanks];
    AllInputs inputs_;
};

TEST_P(MissingExpert, IsNoMatterUntilATokenAsksForIt) {
    for (const Status& status : run()) EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(MissingExpert, CheckInputsFindsItOnTheSourceRank) {
    inputs_[0].topk_idx[2 * 4 + 3] = kMissing;
    test::stage_inputs(ops_[0].get(), options_.index_type, shape_, inputs_[0]);
    expect_refused(ops_[0]->check_inputs(kCapacity), Code::kBadInput,
                   {"topk_idx = 13", "token 2", "slot 3", "rank 1", "not packed"});
    EXPECT_TRUE(ops_[0]->check_inputs(2).ok());
}

TEST_P(MissingExpert, StallsEveryRankAndNamesTheExpert) {
    inputs_[0].topk_idx[2 * 4 + 3] = kMissing;
    const test::Stopwatch watch;
    const auto statuses = run();
    EXPECT_LT(watch.seconds(), 5.0) << "nobody waited for a limit";
    EXPECT_EQ(ops_[1]->stall_report().cause, StallCause::kMissingExpert);
    EXPECT_EQ(ops_[1]->stall_report().expert, 5);
    expect_refused(statuses[1], Code::kStalled,
                   {"rank 1", "local expert 5", "weights were not packed"});
    expect_refused(statuses[0], Code::kStalled,
                   {"rank 1 gave up first", "an expert without weights"});
    // After a reset without that token all is well again.
    ASSERT_TRUE(Operator::reset({ops_[0].get(), ops_[1].get()}, false).ok());
    inputs_[0].topk_idx[2 * 4 + 3] = 3;
    for (const Status& status : run()) EXPECT_TRUE(status.ok()) << status.message();
}

GCMOE_ON_BOTH_EXECUTORS(MissingExpert);

}  // namespace
}  // namespace gcmoe
