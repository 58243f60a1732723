// More workers than the tasks of two laps of one ring place: they look at signals of laps that are
// far ahead. A mask bit tells two laps apart, not three: with n1 + n2 + 2 workers, a second-GEMM
// task of lap L + 1 could look while lap L's bit has not flipped, and take it for its own (R33).
#include <gtest/gtest.h>

#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

OperatorOptions crowded(int ring_blocks, Partition partition) {
    OperatorOptions options = test::options_for(20);
    options.plans = {test::plan_with("many", 8, ring_blocks)};
    options.plans[0].partition = partition;
    return options;
}

class ManyUnits : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        shape_.inter = GetParam();
        inputs_ = test::inputs_with(shape_, 92, {20, 3}, 20);
        expected_ = test::expected_bits(shape_, inputs_);
    }
    Shape shape_ = test::small_shape(2, 128);
    test::AllInputs inputs_;
    std::vector<test::Rows> expected_;
};

TEST_P(ManyUnits, OnTheStepper) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        test::VirtualLayer layer(shape_, test::group_with(ExecutorKind::kStepper, seed),
                                 crowded(1 << seed % 2, {1, 12}));
        EXPECT_EQ(layer.run(inputs_), expected_) << "seed " << seed;
    }
}

// More units than rows in a block, more workers than cores.
TEST_P(ManyUnits, OnThreads) {
    test::VirtualLayer layer(shape_, {}, crowded(2, {30, 50}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(layer.run(inputs_), expected_);
}

INSTANTIATE_TEST_SUITE_P(Inter, ManyUnits, testing::Values(128, 256, 384));

}  // namespace
}  // namespace gcmoe
