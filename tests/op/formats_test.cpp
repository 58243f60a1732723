// Every number format and formula that a shape can ask for, judged stage by stage against the
// reference layer.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "checkpoint/generated_layer.hpp"
#include "op/op_fixture.hpp"
#include "reference/judge.hpp"
#include "support/rank_outputs.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::inputs_with;
using test::options_for;
using test::plan_with;
using test::Rows;
using test::small_shape;

constexpr int kRanks = 2;
constexpr int kCapacity = 12;

struct Format {
    std::string name;
    std::function<void(Shape*)> change;
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;
};
void PrintTo(const Format& format, std::ostream* out) { *out << format.name; }

class Formats : public testing::TestWithParam<Format> {
  protected:
    void SetUp() override {
        GetParam().change(&shape_);
        checkpoint::GeneratedLayer layer;
        layer.shape = shape_;
        layer.biases = shape_.has_bias;
        layer.shared_grid = GetParam().shared_grid;
        ASSERT_TRUE(checkpoint::open_generated_layer(layer, &source_).ok());
        ASSERT_TRUE(Group::in_process(kRanks, {}, &group_).ok());
        options_ = options_for(kCapacity);
        options_.capture = true;
        options_.plans = {plan_with("tight", 8, 2)};
        inputs_ = inputs_with(shape_, 41, {12, 7}, kCapacity, 0.15);
        for (int rank = 0; rank < kRanks; ++rank) create(rank);
    }
    void create(int rank) {
        std::shared_ptr<const PackedWeights> weights;
        Status status = PackedWeights::pack(*source_, shape_, rank, {}, &weights, nullptr);
        ASSERT_TRUE(status.ok()) << status.message();
        status = Operator::create(shape_, weights, group_, rank, options_, &ops_[rank]);
        ASSERT_TRUE(status.ok()) << status.message();
    }
    void run() {
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            test::stage_inputs(ops_[rank].get(), options_.index_type, shape_, inputs_[rank]);
            y_[rank].assign(std::size_t{kCapacity} * static_cast<std::size_t>(shape_.hidden), 0);
            LaunchArgs args;
            args.num_tokens = inputs_[rank].num_tokens;
            args.y = y_[rank].data();
            ASSERT_TRUE(ops_[rank]->launch(args).ok());
        }
        for (auto& op : ops_) ASSERT_TRUE(op->synchronize().ok());
    }
    [[nodiscard]] reference::RankOutputs outputs(std::size_t rank) {
        return test::rank_outputs(ops_[rank].get(), kCapacity, y_[rank].data());
    }

    Shape shape_ = small_shape(kRanks);
    std::unique_ptr<WeightSource> source_;
    std::shared_ptr<Group> group_;
    OperatorOptions options_;
    AllInputs inputs_;
    std::unique_ptr<Operator> ops_[kRanks];
    Rows y_[kRanks];
};

TEST_P(Formats, AgreeWithTheReferenceAtEveryStage) {
    run();
    if (HasFatalFailure()) return;
    reference::Problem problem;
    problem.name = GetParam().name;
    problem.shape = shape_;
    problem.weights = source_.get();
    problem.inputs = &inputs_;
    std::vector<reference::RankStages> stages;
    ASSERT_TRUE(reference::evaluate_layer(problem, &stages).ok());
    const auto expected = reference::take_expected(std::move(stages));
    std::vector<reference::RankJudgement> verdicts;
    const Status status = reference::judge_layer(problem, {outputs(0), outputs(1)}, expected,
                                                 reference::kCpuTolerance, &verdicts);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const reference::RankJudgement& verdict : verdicts) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
        EXPECT_GT(verdict.num_slots, 0);
        EXPECT_LT(verdict.rel_l2, reference::kMaxRelL2);
        EXPECT_GT(verdict.cosine, reference::kMinCosine);
    }
}

void with_shared(Shape* shape) { shape->shared_inter = 256; }

void everything(Shape* shape) {
    shape->shared_inter = 128;
    shape->has_bias = true;
    shape->activation = {7.0F, 1.702F, 1.0F};
    shape->activation_scale = ActivationScale::kUe8m0K32;
    shape->weight_placement = WeightPlacement::kAfterSecondGemm;
}

std::vector<Format> formats() {
    constexpr auto kK32 = ActivationScale::kUe8m0K32;
    constexpr auto kAfter = WeightPlacement::kAfterSecondGemm;
    return {
        {"Plain", [](Shape*) {}},
        {"NoClamp", [](Shape* s) { s->activation = {}; }},
        {"GptOssFormula",
         [](Shape* s) {
             s->activation = {7.0F, 1.702F, 1.0F};
         }},
        {"Ue8m0Activations", [=](Shape* s) { s->activation_scale = kK32; }},
        {"WeightAfterSecondGemm", [=](Shape* s) { s->weight_placement = kAfter; }},
        {"Biases", [](Shape* s) { s->has_bias = true; }},
        {"BiasesWeightAfter",
         [=](Shape* s) {
             s->has_bias = true;
             s->weight_placement = kAfter;
         }},
        {"SharedBlock128Fp32", with_shared, ScaleGrid::kFp32Block128},
        {"SharedBlock128Ue8m0", with_shared, ScaleGrid::kUe8m0Block128},
        {"SharedBlock32Ue8m0", with_shared, ScaleGrid::kUe8m0Block32},
        {"SharedRow32Ue8m0", with_shared, ScaleGrid::kUe8m0Row32},
        {"SharedRow32Ue8m0Activations",
         [=](Shape* s) {
             with_shared(s);
             s->activation_scale = kK32;
         },
         ScaleGrid::kUe8m0Row32},
        {"OneChunk", [](Shape* s) { s->hidden = s->inter = 128; }},
        {"UnevenColumns", [](Shape* s) { s->hidden = 384; }},
        {"Everything", everything, ScaleGrid::kUe8m0Block32},
    };
}

std::string format_name(const testing::TestParamInfo<Format>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(, Formats, testing::ValuesIn(formats()), format_name);

}  // namespace
}  // namespace gcmoe
