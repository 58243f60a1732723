#include "reference/layer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "fixtures.hpp"
#include "numerics/quantise.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

constexpr std::uint8_t kOne = 2;        // E2M1 1.0
constexpr std::uint8_t kTwo = 4;        // E2M1 2.0
constexpr std::uint8_t kPerK128 = 120;  // 2^-7: a sum of 128 ones is 1

// One token, one expert taken twice with weights 1/2 and 1/4; every gate is 1, every up 2.
struct TinyLayer {
    Shape shape;
    MemorySource source;
    std::vector<RankInputs> inputs;
    Problem problem;

    TinyLayer() {
        shape.hidden = 128;
        shape.inter = 128;
        shape.num_experts = 1;
        shape.topk = 2;
        source.experts.push_back({constant_mxfp4(128, 128, kOne, kPerK128),
                                  constant_mxfp4(128, 128, kTwo, kPerK128),
                                  constant_mxfp4(128, 128, kOne, kPerK128),
                                  {},
                                  {},
                                  {}});
        RankInputs one;
        one.num_tokens = 1;
        one.capacity = 1;
        one.x.assign(128, 0x38);  // 1.0
        one.x_scale = {numerics::float_to_bits(1.0F)};
        one.topk_idx = {0, 0};
        one.topk_weight = {0.5F, 0.25F};
        inputs.push_back(one);
    }
    RankStages evaluate() {
        problem.shape = shape;
        problem.weights = &source;
        problem.inputs = &inputs;
        std::vector<RankStages> stages;
        EXPECT_TRUE(evaluate_layer(problem, &stages).ok());
        return stages[0];
    }
};

// silu(1) * 2 = 1.4621171572600098 in both comments below.
TEST(TinyLayer, GoldenStages) {
    TinyLayer layer;
    const RankStages stages = layer.evaluate();
    // 0.7310586 / 448 and 0.3655293 / 448, all codes at the top of the grid.
    EXPECT_EQ(stages.act[0], 0x7E);
    EXPECT_EQ(stages.act[127], 0x7E);
    EXPECT_EQ(stages.act_scale[0], numerics::float_to_bits(0.7310585786300049F / 448.0F));
    EXPECT_EQ(stages.act_scale[1], numerics::float_to_bits(0.36552928931500245F / 448.0F));
    // 0.7310586 = 1.462117 * 2^-1 rounds to (1 + 59/128) * 2^-1, the other to half of it.
    EXPECT_EQ(stages.combine[0], 0x3F3B);
    EXPECT_EQ(stages.combine[128], 0x3EBB);
    // 0.73046875 + 0.365234375 = 1 + 12.25/128.
    EXPECT_EQ(stages.y[0], 0x3F8C);
    EXPECT_NEAR(stages.plain[0], 0.75 * 1.4621171572600098, 1e-15);
}

TEST(TinyLayer, WeightAfterSecondGemm) {
    TinyLayer layer;
    layer.shape.weight_placement = WeightPlacement::kAfterSecondGemm;
    const RankStages stages = layer.evaluate();
    EXPECT_EQ(stages.act_scale[0], numerics::float_to_bits(1.4621171572600098F / 448.0F));
    EXPECT_EQ(stages.act_scale[0], stages.act_scale[1]);
    EXPECT_EQ(stages.combine[0], 0x3F3B);
    EXPECT_EQ(stages.combine[128], 0x3EBB);
}

TEST(TinyLayer, PowerOfTwoScalesAreRoundedUp) {
    TinyLayer layer;
    layer.shape.activation_scale = ActivationScale::kUe8m0K32;
    layer.inputs[0].x_scale = {0x7F7F7F7FU};  // 1.0
    const RankStages stages = layer.evaluate();
    // 0.7310586 / 448 = 1.63e-3 -> 2^-9, code 118 in every group; 0.7310586 * 512 = 374.3 -> 384.
    EXPECT_EQ(stages.act_scale[0], 0x76767676U);
    EXPECT_EQ(stages.act[0], numerics::e4m3_from_float(384.0F));
    EXPECT_EQ(stages.combine[0], 0x3F40);  // 384 / 512 = 0.75
}

TEST(TinyLayer, BiasesComeBeforeTheClampAndBeforeTheRounding) {
    TinyLayer layer;
    layer.shape.has_bias = true;
    layer.shape.activation = {1.5F, 1.0F, 0.0F};
    ExpertData& expert = layer.source.experts[0];
    expert.gate_bias.assign(128, 1.0F);  // 1 + 1 -> clamped to 1.5
    expert.up_bias.assign(128, -4.0F);   // 2 - 4 -> clamped to -1.5
    expert.down_bias.assign(128, 3.0F);
    const RankStages stages = layer.evaluate();
    const double silu = 1.5 / (1.0 + std::exp(-1.5));
    const double gated = silu * -1.5;
    EXPECT_NEAR(stages.plain[0], 0.75 * gated + 0.75 * 3.0, 1e-12);
    EXPECT_EQ(stages.act[0], 0xFE);  // -448
    const float first = static_cast<float>(0.5 * gated) + 0.5F * 3.0F;
    EXPECT_EQ(stages.combine[0], numerics::bf16_from_float(first));
}

TEST(TinyLayer, WithoutLiveSlotsItIsExactlyZero) {
    TinyLayer layer;
    layer.inputs[0].topk_idx = {-1, 7};  // unused, and an id that no rank owns
    layer.inputs[0].topk_weight = {std::nanf(""), std::nanf("")};
    const RankStages stages = layer.evaluate();
    for (const std::uint16_t bits : stages.y) EXPECT_EQ(bits, 0);
}

TEST(TinyLayer, ANanTokenShowsInItsOwnRowOnly) {
    TinyLayer layer;
    layer.inputs[0].num_tokens = 2;
    layer.inputs[0].capacity = 2;
    layer.inputs[0].x.resize(256, 0x38);
    layer.inputs[0].x[3] = 0x7F;
    layer.inputs[0].x_scale.push_back(numerics::float_to_bits(1.0F));
    layer.inputs[0].topk_idx = {0, 0, 0, 0};
    layer.inputs[0].topk_weight = {0.5F, 0.25F, 0.5F, 0.25F};
    const RankStages stages = layer.evaluate();
    EXPECT_TRUE(std::isnan(numerics::bf16_to_float(stages.y[0])));
    EXPECT_EQ(stages.y[128], 0x3F8C);
}

TEST(Elements, EvenColumnsStandInTheLowNibble) {
    Mxfp4Matrix matrix = constant_mxfp4(1, 32, 0, 128);
    matrix.nibbles[1] = 0x7B;  // column 2: code 0xB = -1.5, column 3: code 7 = 6
    EXPECT_EQ(weight_value(matrix.view(), 0, 2), -3.0);
    EXPECT_EQ(weight_value(matrix.view(), 0, 3), 12.0);
}

TEST(Elements, ScaleGridsOfTheSharedExpert) {
    Fp8Matrix matrix = random_fp8(256, 256, ScaleGrid::kUe8m0Block128, 1);
    matrix.scale_bytes = {127, 128, 129, 130};
    EXPECT_EQ(weight_scale(matrix.view(), 127, 127), 1.0);
    EXPECT_EQ(weight_scale(matrix.view(), 127, 128), 2.0);
    EXPECT_EQ(weight_scale(matrix.view(), 128, 0), 4.0);
    matrix.grid = ScaleGrid::kUe8m0Block32;
    matrix.scale_bytes.assign(64, 127);
    matrix.scale_bytes[8 + 3] = 125;  // rows 32..63, columns 96..127
    EXPECT_EQ(weight_scale(matrix.view(), 63, 127), 0.25);
    EXPECT_EQ(weight_scale(matrix.view(), 31, 127), 1.0);
    EXPECT_EQ(weight_scale(matrix.view(), 63, 95), 1.0);
    matrix.grid = ScaleGrid::kUe8m0Row32;
    matrix.scale_bytes.assign(256 * 8, 127);
    matrix.scale_bytes[8 * 5 + 7] = 130;
    EXPECT_EQ(weight_scale(matrix.view(), 5, 255), 8.0);
    EXPECT_EQ(weight_scale(matrix.view(), 4, 255), 1.0);
}

TEST(Elements, HalfSteps) {
    EXPECT_EQ(e4m3_half_step(0.0), 0x1p-10);
    EXPECT_EQ(e4m3_half_step(1.0), 0x1p-4);
    EXPECT_EQ(e4m3_half_step(-1.99), 0x1p-4);
    EXPECT_EQ(e4m3_half_step(448.0), 16.0);
    EXPECT_EQ(e4m3_half_step(1e6), 16.0);
    EXPECT_EQ(bf16_half_step(1.0), 0x1p-8);
    EXPECT_EQ(bf16_half_step(0.0), 0x1p-134);
}

// Every element function against the batch that the judge and the bit-true layer use.
void expect_elements_equal_batch(const Shape& shape, ScaleGrid grid) {
    MemorySource source = random_source(shape, grid, 21);
    std::vector<RankInputs> inputs = random_inputs(shape, {4, 4}, 9);
    Problem problem;
    problem.shape = shape;
    problem.weights = &source;
    problem.inputs = &inputs;
    ExpertReader reader(&source);
    for (const Batch& batch : make_batches(shape, inputs)) {
        Matrix x;
        std::vector<double> weight;
        load_batch(problem, batch, &x, &weight);
        const auto check = [&](const auto& expert) {
            Matrix gated;
            gated_batch(expert, shape.activation, x, weight, &gated);
            std::vector<std::uint8_t> codes(gated.cols);
            std::vector<std::uint32_t> scales(gated.cols / 128);
            for (std::size_t i = 0; i < batch.rows.size(); ++i) {
                const CodedRow row = input_row(problem, batch.rows[i]);
                for (int col = 0; col < static_cast<int>(gated.cols); col += 7) {
                    const double wanted =
                        gated_value(expert, col, row, shape.activation, weight[i]);
                    EXPECT_NEAR(gated.row(i)[col], wanted, 1e-12 * (1.0 + std::abs(wanted)));
                }
                requantise_row(gated.row(i), static_cast<int>(gated.cols), shape.activation_scale,
                               codes.data(), scales.data());
                const CodedRow act{codes.data(), scales.data(), shape.activation_scale};
                Matrix decoded(1, gated.cols);
                decode_row(act, static_cast<int>(gated.cols), decoded.row(0));
                Matrix sums;
                down_batch(expert, decoded, &sums);
                for (int col = 0; col < shape.hidden; col += 5) {
                    EXPECT_NEAR(sums.row(0)[col], dot(expert.down, col, act), 1e-11);
                }
            }
        };
        ASSERT_TRUE(reader.with(batch.expert, check).ok());
    }
}

TEST(Elements, EqualTheBatchForEveryFormat) {
    for (const ScaleGrid grid : {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                 ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32}) {
        expect_elements_equal_batch(small_shape(true), grid);
    }
    Shape shape = small_shape(false);
    shape.has_bias = true;
    shape.activation = {7.0F, 1.702F, 1.0F};
    shape.activation_scale = ActivationScale::kUe8m0K32;
    expect_elements_equal_batch(shape, ScaleGrid::kUe8m0Block128);
}

TEST(Batches, HoldEveryLiveSlotOnceInOrder) {
    const Shape shape = small_shape(true);
    const std::vector<RankInputs> inputs = random_inputs(shape, {5, 0}, 3);
    std::int64_t routed = 0;
    std::int64_t shared = 0;
    for (const Batch& batch : make_batches(shape, inputs)) {
        int last = -2;
        for (const Place& place : batch.rows) {
            const int order = (place.rank * 8 + place.token) * 2 + place.slot;
            EXPECT_GT(order, last);
            last = order;
            if (batch.expert == kSharedExpert) {
                ++shared;
            } else {
                ++routed;
                EXPECT_EQ(batch.expert, expert_of(shape, inputs[0], place.token, place.slot));
            }
        }
    }
    EXPECT_EQ(routed, num_live_slots(shape, inputs[0]));
    EXPECT_EQ(shared, 5);
}

TEST(Batches, ResultsDoNotDependOnThreads) {
    SmallCase one(small_shape(true));
    std::vector<RankStages> again;
    one.problem.num_threads = 1;
    ASSERT_TRUE(evaluate_layer(one.problem, &again).ok());
    for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(again[rank].y, one.stages[rank].y);
        EXPECT_EQ(again[rank].act, one.stages[rank].act);
        EXPECT_EQ(again[rank].plain, one.stages[rank].plain);
    }
}

TEST(Parallel, HandsOnTheFirstException) {
    const auto work = [](std::size_t item) {
        if (item == 3) throw std::runtime_error("three");
    };
    EXPECT_THROW(for_each_item(8, 3, work), std::runtime_error);
}

}  // namespace
}  // namespace gcmoe::reference
