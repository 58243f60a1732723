// Every refusal of LaunchArgs. A refused launch leaves no trace: nothing was queued.
#include <gtest/gtest.h>

#include <limits>

#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::expect_refused;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::small_shape;
using test::VirtualLayer;

constexpr int kCapacity = 6;

class LaunchArgsRefusal : public testing::Test {
  protected:
    // Refused with these words; afterwards the layer still gives the right bits in generation 1.
    void refuse(const LaunchArgs& args, Code code, const std::vector<std::string>& words) {
        expect_refused(layer_.op(0).launch(args), code, words);
        EXPECT_TRUE(layer_.op(0).synchronize().ok());
        EXPECT_EQ(layer_.op(0).statistics().generation, 0U);
        const auto inputs = inputs_with(small_shape(2), 5, {3, 2}, kCapacity);
        EXPECT_EQ(layer_.run(inputs), expected_bits(small_shape(2), inputs));
        EXPECT_EQ(layer_.op(0).statistics().generation, 1U);
    }
    LaunchArgs good() {
        LaunchArgs args;
        args.num_tokens = 2;
        args.y = y_.data();
        return args;
    }

    VirtualLayer layer_{small_shape(2), {}, options_for(kCapacity)};
    std::vector<std::uint16_t> y_ = std::vector<std::uint16_t>(std::size_t{kCapacity} * 256);
};

TEST_F(LaunchArgsRefusal, NegativeTokens) {
    LaunchArgs args = good();
    args.num_tokens = -1;
    refuse(args, Code::kBadInput, {"num_tokens = -1", "0..6"});
}

TEST_F(LaunchArgsRefusal, OverCapacity) {
    LaunchArgs args = good();
    args.num_tokens = kCapacity + 1;
    refuse(args, Code::kBadInput, {"num_tokens = 7", "0..6", "capacity"});
}

TEST_F(LaunchArgsRefusal, HugeTokens) {
    LaunchArgs args = good();
    args.num_tokens = std::numeric_limits<int>::max();
    refuse(args, Code::kBadInput, {"num_tokens = 2147483647", "0..6"});
}

TEST_F(LaunchArgsRefusal, NullY) {
    LaunchArgs args = good();
    args.y = nullptr;
    refuse(args, Code::kBadInput, {"y is null", "num_tokens = 2"});
}

TEST_F(LaunchArgsRefusal, NullYWithACallback) {
    LaunchArgs args = good();
    args.y = nullptr;
    args.num_tokens = 0;
    args.before = [] { return 1; };
    refuse(args, Code::kBadInput, {"y is null", "before"});
}

TEST_F(LaunchArgsRefusal, StrideBelowHidden) {
    LaunchArgs args = good();
    args.y_stride = 255;
    refuse(args, Code::kBadInput, {"y_stride = 255", "hidden = 256"});
}

TEST_F(LaunchArgsRefusal, NegativeStride) {
    LaunchArgs args = good();
    args.y_stride = -256;
    refuse(args, Code::kBadInput, {"y_stride = -256", "hidden = 256"});
}

TEST_F(LaunchArgsRefusal, UnknownPlan) {
    LaunchArgs args = good();
    args.plan = "prefill";
    refuse(args, Code::kBadConfig, {"'prefill'", "default"});
}

TEST(LaunchArgs, NoTokensNeedNoY) {
    VirtualLayer layer(small_shape(2), {}, options_for(kCapacity));
    for (const int rank : {0, 1}) EXPECT_TRUE(layer.op(rank).launch({}).ok());
    for (const int rank : {0, 1}) EXPECT_TRUE(layer.op(rank).synchronize().ok());
}

TEST(LaunchArgs, StrideLeavesTheGapsAlone) {
    const Shape shape = small_shape(1);
    VirtualLayer layer(shape, {}, options_for(kCapacity));
    const auto inputs = inputs_with(shape, 6, {3}, kCapacity);
    const auto dense = layer.run(inputs).front();
    constexpr std::size_t kStride = 300;
    std::vector<std::uint16_t> y(3 * kStride, 0xABCD);
    LaunchArgs args;
    args.num_tokens = 3;
    args.y = y.data();
    args.y_stride = kStride;
    ASSERT_TRUE(layer.op(0).launch(args).ok());
    ASSERT_TRUE(layer.op(0).synchronize().ok());
    for (std::size_t at = 0; at < y.size(); ++at) {
        const std::size_t column = at % kStride;
        EXPECT_EQ(y[at], column < 256 ? dense[at / kStride * 256 + column] : 0xABCD) << at;
    }
}

}  // namespace
}  // namespace gcmoe
