// The arithmetic of gcmoe bench against figures worked out by hand.
#include <gtest/gtest.h>

#include "checkpoint/models.hpp"
#include "tools/gcmoe/bench_figures.hpp"

namespace gcmoe::cli {
namespace {

Shape v41_flash() {
    Shape shape;
    shape.hidden = 5120;
    shape.inter = 2304;
    shape.num_experts = 48;
    shape.topk = 6;
    return shape;
}

TEST(BenchFigures, BytesOfAnExpert) {
    // 3 * 5120 * 2304 weights: half a byte each, and a byte of scale for 32.
    EXPECT_EQ(expert_weights(v41_flash()), 35'389'440);
    EXPECT_EQ(expert_bytes(v41_flash()), 17'694'720 + 1'105'920);
    EXPECT_EQ(shared_bytes(v41_flash()), 0);
    Shape with_shared = v41_flash();
    with_shared.shared_inter = 2304;
    EXPECT_EQ(shared_bytes(with_shared), 35'389'440);
}

// The floors that the peers' tables were made with, to their last digit.
TEST(BenchFigures, FloorsOfThePeersTables) {
    const struct {
        const char* model;
        int touched;
        double floor;
    } cases[] = {{"v4.1-flash", 6, 26.2}, {"v4.1-flash", 47, 205.5}, {"v4-flash", 6, 18.6},
                 {"v4-flash", 32, 99.5},  {"glm-5.2", 8, 37.3},      {"glm-5.2", 29, 135.2}};
    for (const auto& one : cases) {
        checkpoint::ModelEntry entry;
        ASSERT_TRUE(checkpoint::find_model(one.model, &entry).ok());
        const Shape shape = checkpoint::model_shape(entry, 8);
        EXPECT_NEAR(floor_us(one.touched * expert_bytes(shape)), one.floor, 0.1)
            << one.model << ", " << one.touched;
    }
}

TEST(BenchFigures, Rates) {
    // 32 tokens x 6 slots x 6 * 5120 * 2304 operations in 100 us; 35,389,440 bytes in 10 us.
    EXPECT_DOUBLE_EQ(tflops(v41_flash(), 192, 100), 192 * 70'778'880.0 / 1e8);
    EXPECT_DOUBLE_EQ(gb_per_s(35'389'440, 10), 3538.944);
}

TEST(BenchFigures, MedianIsTheUpperOfTheMiddle) {
    EXPECT_EQ(median({5}), 5);
    EXPECT_EQ(median({9, 1}), 9);
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 3, 2}), 3);
    EXPECT_EQ(median_idx({7, 7, 7}), 1U);
    EXPECT_EQ(median_idx({30, 10, 20}), 2U);
    EXPECT_EQ(mean({1, 2, 6}), 3);
}

}  // namespace
}  // namespace gcmoe::cli
