// Every refusal of validate(Shape): code, field, value, limit. Every known model's shape passes.
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/models.hpp"
#include "op/refusal.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Case = test::Refusal<Shape>;
class ShapeRefusal : public testing::TestWithParam<Case> {};

TEST_P(ShapeRefusal, NamesFieldValueLimit) {
    Shape shape = test::small_shape(2);
    ASSERT_TRUE(validate(shape).ok());
    GetParam().change(&shape);
    expect_refused(validate(shape), Code::kBadConfig, GetParam().words);
}

std::vector<Case> size_cases() {
    return {
        {"HiddenZero", [](Shape* s) { s->hidden = 0; }, {"hidden = 0", "128"}},
        {"HiddenNegative", [](Shape* s) { s->hidden = -128; }, {"hidden = -128", "128"}},
        {"HiddenUneven", [](Shape* s) { s->hidden = 2880; }, {"hidden = 2880", "multiple of 128"}},
        {"InterZero", [](Shape* s) { s->inter = 0; }, {"inter = 0", "128"}},
        {"InterNegative", [](Shape* s) { s->inter = -256; }, {"inter = -256", "128"}},
        {"InterUneven", [](Shape* s) { s->inter = 2880; }, {"inter = 2880", "multiple of 128"}},
        {"InterOver64Bits", [](Shape* s) { s->inter = 8320; }, {"inter = 8320", "8192", "64 mask"}},
        {"SharedUneven", [](Shape* s) { s->shared_inter = 64; }, {"shared_inter = 64", "128"}},
        {"SharedNegative", [](Shape* s) { s->shared_inter = -128; }, {"shared_inter = -128"}},
        {"SharedTooWide", [](Shape* s) { s->shared_inter = 8320; }, {"shared_inter", "8192"}},
        {"NoRanks", [](Shape* s) { s->num_ranks = 0; }, {"num_ranks = 0", "1..72"}},
        {"NegativeRanks", [](Shape* s) { s->num_ranks = -4; }, {"num_ranks = -4", "1..72"}},
        {"TooManyRanks",
         [](Shape* s) { s->num_ranks = 73; },
         {"num_ranks = 73", "1..72", "peer descriptor"}},
        {"NoExperts", [](Shape* s) { s->num_experts = 0; }, {"num_experts = 0", "num_ranks = 2"}},
        {"NegativeExperts", [](Shape* s) { s->num_experts = -16; }, {"num_experts = -16"}},
        {"UnevenExperts",
         [](Shape* s) { s->num_experts = 17; },
         {"num_experts = 17", "num_ranks = 2"}},
        {"TooManyExpertsOfARank",
         [](Shape* s) { s->num_experts = 2 * 65537; },
         {"65537", "65536", "block table"}},
        {"TopkZero", [](Shape* s) { s->topk = 0; }, {"topk = 0", "num_experts = 16"}},
        {"TopkNegative", [](Shape* s) { s->topk = -1; }, {"topk = -1", "num_experts = 16"}},
        {"TopkOverExperts", [](Shape* s) { s->topk = 17; }, {"topk = 17", "num_experts = 16"}},
    };
}

std::vector<Case> formula_cases() {
    return {
        {"ClampZero", [](Shape* s) { s->activation.clamp = 0; }, {"activation.clamp = 0"}},
        {"ClampNegative", [](Shape* s) { s->activation.clamp = -7; }, {"clamp = -7", "positive"}},
        {"ClampNan", [](Shape* s) { s->activation.clamp = kNan; }, {"clamp = nan", "positive"}},
        {"AlphaNan", [](Shape* s) { s->activation.alpha = kNan; }, {"alpha = nan", "finite"}},
        {"AlphaInfinite", [](Shape* s) { s->activation.alpha = kInfinity; }, {"alpha = inf"}},
        {"BetaNan", [](Shape* s) { s->activation.beta = kNan; }, {"beta = nan", "finite"}},
        {"BetaInfinite", [](Shape* s) { s->activation.beta = -kInfinity; }, {"beta = -inf"}},
        {"UnknownActivationScale",
         [](Shape* s) { s->activation_scale = static_cast<ActivationScale>(7); },
         {"activation_scale = 7", "0..1"}},
        {"UnknownWeightPlacement",
         [](Shape* s) { s->weight_placement = static_cast<WeightPlacement>(7); },
         {"weight_placement = 7", "0..1"}},
    };
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShapeRefusal, testing::ValuesIn(size_cases()),
                         test::refusal_name<Shape>);
INSTANTIATE_TEST_SUITE_P(Formulas, ShapeRefusal, testing::ValuesIn(formula_cases()),
                         test::refusal_name<Shape>);

void expect_accepted(const std::function<void(Shape*)>& change) {
    Shape shape = test::small_shape(2);
    change(&shape);
    EXPECT_TRUE(validate(shape).ok()) << validate(shape).message();
}

TEST(ShapeAccepted, AtEveryLimit) {
    expect_accepted([](Shape* s) { s->hidden = s->inter = s->shared_inter = 128; });
    expect_accepted([](Shape* s) { s->inter = s->shared_inter = 8192; });
    expect_accepted([](Shape* s) { s->num_ranks = s->num_experts = 72; });
    expect_accepted([](Shape* s) { s->num_experts = 2 * 65536; });
    expect_accepted([](Shape* s) { s->topk = 16; });
    expect_accepted([](Shape* s) { s->activation.clamp = kInfinity; });
    expect_accepted([](Shape* s) { s->activation.alpha = s->activation.beta = 3e38F; });
}

TEST(ShapeModels, KnownModelsPassOrNeedPaddingTo128) {
    int padded = 0;
    for (const checkpoint::ModelEntry& entry : checkpoint::known_models()) {
        for (const int ranks : {1, 2, 4, 8, 16, 32}) {
            const Status status = validate(checkpoint::model_shape(entry, ranks));
            if (entry.hidden % 128 == 0) {
                EXPECT_TRUE(status.ok()) << entry.name << ": " << status.message();
                continue;
            }
            expect_refused(status, Code::kBadConfig, {"hidden = 2880", "128"});
            ++padded;
        }
    }
    EXPECT_EQ(padded, 2 * 6) << "gpt-oss in both sizes";
}

TEST(ShapeModels, PaddedGptOssPasses) {
    Shape shape;
    shape.hidden = shape.inter = 2944;
    shape.num_experts = 128;
    shape.topk = 4;
    shape.num_ranks = 8;
    shape.has_bias = true;
    shape.activation = {7.0F, 1.702F, 1.0F};
    EXPECT_TRUE(validate(shape).ok()) << validate(shape).message();
}

// Shapes of the table that the command does not know by name.
TEST(ShapeModels, OthersPass) {
    struct Other {
        const char* name;
        int hidden, inter, experts, topk, shared;
    };
    for (const Other& other : {Other{"GLM-5.3-Flash", 4096, 2048, 288, 8, 2048},
                               Other{"Kimi-K3", 3584, 3072, 896, 16, 3072},
                               Other{"Qwen3.5-397B", 4096, 1024, 512, 10, 1024}}) {
        Shape shape;
        shape.hidden = other.hidden;
        shape.inter = other.inter;
        shape.num_experts = other.experts;
        shape.topk = other.topk;
        shape.num_ranks = 8;
        shape.shared_inter = other.shared;
        EXPECT_TRUE(validate(shape).ok()) << other.name << ": " << validate(shape).message();
    }
}

}  // namespace
}  // namespace gcmoe
