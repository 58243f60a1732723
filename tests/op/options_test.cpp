// Every refusal of OperatorOptions, through the calls that users make: capability, size_report,
// create.
#include <gtest/gtest.h>

#include <limits>

#include "gcmoe/capability.hpp"
#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::options_for;
using test::plan_with;
using test::small_shape;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Case = test::Refusal<OperatorOptions>;
class OptionsRefusal : public testing::TestWithParam<Case> {};

TEST_P(OptionsRefusal, NamesFieldValueLimit) {
    OperatorOptions options = options_for(8);
    ASSERT_TRUE(capability(small_shape(2), options).ok());
    GetParam().change(&options);
    const Status status = capability(small_shape(2), options);
    expect_refused(status, Code::kBadConfig, GetParam().words);
    std::vector<SizeEntry> sizes;
    EXPECT_EQ(Operator::size_report(small_shape(2), options, &sizes).message(), status.message());
    EXPECT_TRUE(sizes.empty());
}

using Options = OperatorOptions;

std::vector<Case> cases() {
    return {
        {"NoTokens", [](Options* o) { o->max_tokens = 0; }, {"max_tokens = 0", "at least 1"}},
        {"NegativeTokens", [](Options* o) { o->max_tokens = -5; }, {"max_tokens = -5"}},
        {"SlotsOver24Bits",
         [](Options* o) { o->max_tokens = 1 << 22; },
         {"4194304 * 4", "16777215", "24 bits"}},
        {"UnknownIndexType",
         [](Options* o) { o->index_type = static_cast<IndexType>(9); },
         {"index_type = 9", "0..1"}},
        {"TooManyPlans", [](Options* o) { o->plans.resize(17); }, {"17", "at most 16"}},
        {"PlanNamedTwice",
         [](Options* o) {
             o->plans = {plan_with("a", 8, 2), plan_with("b", 8, 2), plan_with("a", 16, 2)};
         },
         {"'a'", "twice"}},
        {"PlanWithoutName",
         [](Options* o) {
             o->plans = {plan_with("a", 8, 2), plan_with("", 16, 2)};
         },
         {"name", "empty"}},
        {"FirstLimitNegative",
         [](Options* o) { o->wait_limits.first_launch_s = -1.0; },
         {"first_launch_s = -1", "0 = wait for ever"}},
        {"SteadyLimitNegative",
         [](Options* o) { o->wait_limits.steady_s = -0.5; },
         {"steady_s = -0.5", "0 = wait for ever"}},
        {"FirstLimitNan",
         [](Options* o) { o->wait_limits.first_launch_s = kNan; },
         {"first_launch_s = nan", "1e9"}},
        {"SteadyLimitNan",
         [](Options* o) { o->wait_limits.steady_s = kNan; },
         {"steady_s = nan", "1e9"}},
        {"FirstLimitInfinite",
         [](Options* o) { o->wait_limits.first_launch_s = kInfinity; },
         {"first_launch_s = inf", "1e9"}},
        {"SteadyLimitHuge",
         [](Options* o) { o->wait_limits.steady_s = 1e12; },
         {"steady_s = 1000000000000", "1e9"}},
    };
}

INSTANTIATE_TEST_SUITE_P(, OptionsRefusal, testing::ValuesIn(cases()),
                         test::refusal_name<OperatorOptions>);

TEST(OptionsRefusals, PlanIsNamed) {
    OperatorOptions options = options_for(8);
    options.plans = {plan_with("good", 8, 2), plan_with("decode", 8, 3)};
    expect_refused(capability(small_shape(2), options), Code::kBadConfig,
                   {"'decode'", "ring_blocks = 3"});
}

TEST(OptionsAccepted, Limits) {
    OperatorOptions options = options_for((1 << 24) / 4 - 1);
    options.wait_limits = {0.0, 1e9};
    const Status status = capability(small_shape(2), options);
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Capability, UnknownBackend) {
    OperatorOptions options = options_for(8);
    options.backend = "tpu";
    expect_refused(capability(small_shape(2), options), Code::kBadConfig, {"'tpu'", "cpu", "cuda"});
}

TEST(Capability, CudaIsRefusedWithAReason) {
    OperatorOptions options = options_for(8);
    options.backend = "cuda";
    for (const BackendInfo& info : backends()) {
        if (info.name == "cuda" && info.available) GTEST_SKIP() << "this build has CUDA kernels";
    }
    expect_refused(capability(small_shape(2), options), Code::kUnsupported,
                   {"'cuda'", "GPU kernels"});
    const Shape shape = small_shape(1);
    std::shared_ptr<Group> group;
    ASSERT_TRUE(Group::in_process(1, {}, &group).ok());
    std::unique_ptr<Operator> op;
    expect_refused(Operator::create(shape, test::packed_layer(shape)[0], group, 0, options, &op),
                   Code::kUnsupported, {"'cuda'", "GPU kernels"});
    EXPECT_EQ(op, nullptr);
}

TEST(Capability, EveryBackendHasANameAndAReason) {
    ASSERT_FALSE(backends().empty());
    for (const BackendInfo& info : backends()) {
        EXPECT_FALSE(info.name.empty());
        EXPECT_FALSE(info.reason.empty()) << info.name;
    }
}

TEST(Capability, ShapeIsJudgedBeforeOptions) {
    Shape shape = small_shape(2);
    shape.hidden = 2880;
    OperatorOptions options = options_for(0);
    expect_refused(capability(shape, options), Code::kBadConfig, {"hidden = 2880", "128"});
}

}  // namespace
}  // namespace gcmoe
