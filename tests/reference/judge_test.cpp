// The judge lets a right backend pass and names every planted error.
#include "reference/judge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "judge_fixtures.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::reference {
namespace {

void expect_right(const Shape& shape) {
    SmallCase small(shape);
    const std::vector<RankJudgement> verdicts = judge(small, take_expected(small.stages));
    for (const RankJudgement& verdict : verdicts) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
        EXPECT_LE(verdict.worst_stage_error, 1.0);
        EXPECT_GT(verdict.worst_stage_error, 0.5);
        EXPECT_EQ(verdict.rel_l2, 0.0);
        EXPECT_EQ(verdict.cosine, 1.0);
        EXPECT_GT(verdict.plain_rel_l2, 1e-3);  // two roundings apart
        EXPECT_LT(verdict.plain_rel_l2, 0.1);
    }
    EXPECT_EQ(verdicts[0].num_slots, num_live_slots(shape, small.inputs[0]));
}

TEST(Judge, PassesTheBitTrueLayer) {
    expect_right(small_shape(false));
    expect_right(small_shape(true));
}

TEST(Judge, PassesOtherFormatsAndFormulas) {
    Shape shape = small_shape(true);
    shape.has_bias = true;
    shape.activation = {7.0F, 1.702F, 1.0F};
    expect_right(shape);
    shape.weight_placement = WeightPlacement::kAfterSecondGemm;
    expect_right(shape);
    shape.activation_scale = ActivationScale::kUe8m0K32;
    expect_right(shape);
}

TEST(Judge, RejectsACodeOneStepOff) {
    SmallCase small(small_shape(false));
    const Place place = first_live(small);
    const auto plant = [&] { codes_of(&small, place)[5] ^= 1; };
    expect_failure(judge_after(&small, plant), "second-GEMM input column 5");
}

TEST(Judge, NamesCaseRankTokenSlotAndExpert) {
    SmallCase small(small_shape(false));
    const Place place = first_live(small);
    const auto expert = expert_of(small.shape, small.inputs[0], place.token, place.slot);
    const auto plant = [&] { codes_of(&small, place)[5] ^= 1; };
    const std::string text = "case small: rank 0 token " + std::to_string(place.token) + " slot " +
                             std::to_string(place.slot) + " (expert " + std::to_string(expert);
    expect_failure(judge_after(&small, plant), text);
}

TEST(Judge, RejectsAWrongScale) {
    SmallCase small(small_shape(false));
    const auto plant = [&] {
        std::uint32_t* word = scales_of(&small, first_live(small));
        *word = numerics::float_to_bits(numerics::bits_to_float(*word) * 1.0001F);
    };
    expect_failure(judge_after(&small, plant), "columns 0..127: scale");
}

// Codes that fit their scale, but the scale is not the group's.
TEST(Judge, RejectsAScaleOfAnotherAmax) {
    for (const auto form : {ActivationScale::kFp32K128, ActivationScale::kUe8m0K32}) {
        Shape shape = small_shape(false);
        shape.activation_scale = form;
        SmallCase small(shape);
        const Place place = first_live(small);
        const auto plant = [&] {
            std::uint8_t* codes = codes_of(&small, place);
            std::uint32_t* word = scales_of(&small, place);
            for (int i = 0; i < 128; ++i) {
                codes[i] = numerics::e4m3_from_float(numerics::e4m3_to_float(codes[i]) / 2);
            }
            const bool is_fp32 = form == ActivationScale::kFp32K128;
            *word = is_fp32 ? *word + 0x00800000U : *word + 0x01010101U;
        };
        expect_failure(judge_after(&small, plant), "scale");
    }
}

TEST(Judge, RejectsACombineRowRoundedTheOtherWay) {
    SmallCase small(small_shape(false));
    const Place place = first_live(small);
    const auto plant = [&] { row_of(&small, place)[9] += 1; };
    expect_failure(judge_after(&small, plant), "second-GEMM output column 9");
}

TEST(Judge, RejectsNanEverywhere) {
    for (int where = 0; where < 4; ++where) {
        SmallCase small(small_shape(true));
        const Place place = first_live(small);
        const auto plant = [&] {
            if (where == 0) codes_of(&small, place)[0] = 0x7F;
            if (where == 1) *scales_of(&small, place) = 0x7FC00000U;
            if (where == 2) row_of(&small, place)[0] = 0x7FC0;
            if (where == 3) small.stages[0].y[0] = 0xFFC0;
        };
        EXPECT_FALSE(judge_after(&small, plant)[0].ok) << where;
    }
}

// A NaN that the sum hands on correctly is still no pass.
TEST(Judge, RejectsANanThatEveryStageAgreesOn) {
    SmallCase small(small_shape(false));
    const Place place = first_live(small);
    const auto plant = [&] {
        row_of(&small, place)[0] = 0x7FC0;
        small.stages[0].y[slot_idx(small.shape, place.token, 0) * 128] = 0x7FC0;
    };
    EXPECT_FALSE(judge_after(&small, plant)[0].ok);
}

TEST(Judge, RejectsSwappedTokens) {
    SmallCase small(small_shape(true));
    const auto plant = [&] {
        const auto hidden = static_cast<std::ptrdiff_t>(small.shape.hidden);
        RankStages& own = small.stages[0];
        std::swap_ranges(own.y.begin(), own.y.begin() + hidden, own.y.begin() + hidden);
        std::swap_ranges(own.combine.begin(), own.combine.begin() + 2 * hidden,
                         own.combine.begin() + 2 * hidden);
        std::swap_ranges(own.shared_row.begin(), own.shared_row.begin() + hidden,
                         own.shared_row.begin() + hidden);
    };
    expect_failure(judge_after(&small, plant), "second-GEMM output column");
}

TEST(Judge, RejectsASumRoundedAfterEveryAddition) {
    SmallCase small(small_shape(true));
    const auto plant = [&] {
        const auto hidden = static_cast<std::size_t>(small.shape.hidden);
        RankStages& own = small.stages[0];
        for (std::size_t i = 0; i < own.y.size(); ++i) {
            const std::size_t token = i / hidden;
            float sum = 0.0F;
            for (std::size_t slot = 0; slot < 2; ++slot) {
                if (small.inputs[0].topk_idx[token * 2 + slot] < 0) continue;
                sum +=
                    numerics::bf16_to_float(own.combine[(token * 2 + slot) * hidden + i % hidden]);
                sum = numerics::bf16_to_float(numerics::bf16_from_float(sum));
            }
            sum += numerics::bf16_to_float(own.shared_row[i]);
            own.y[i] = numerics::bf16_from_float(sum);
        }
    };
    expect_failure(judge_after(&small, plant), "the sum of its combine rows is");
}

// Rows A 2^24, A, -A 2^24: the FP32 sum depends on the order.
TEST(Judge, RejectsAnotherOrderOfSummation) {
    Shape shape = small_shape(false);
    shape.topk = 3;
    SmallCase small(shape);
    const auto expert = [&](std::uint8_t down_nibble, std::uint8_t down_scale) {
        return ExpertData{constant_mxfp4(128, 256, 2, 120),
                          constant_mxfp4(128, 256, 4, 120),
                          constant_mxfp4(256, 128, down_nibble, down_scale),
                          {},
                          {},
                          {}};
    };
    small.source.experts = {expert(2, 144), expert(2, 120), expert(10, 144), expert(2, 120)};
    small.inputs[0].num_tokens = 1;
    small.inputs[0].topk_idx = {0, 1, 2};
    small.inputs[0].topk_weight = {1.0F, 1.0F, 1.0F};
    ASSERT_TRUE(evaluate_layer(small.problem, &small.stages).ok());
    const auto expected = take_expected(small.stages);
    EXPECT_TRUE(judge(small, expected)[0].ok) << judge(small, expected)[0].first_failure;
    const auto plant = [&] {
        for (std::size_t i = 0; i < 256; ++i) {
            const std::vector<std::uint16_t>& rows = small.stages[0].combine;
            const float sum =
                (numerics::bf16_to_float(rows[i]) + numerics::bf16_to_float(rows[512 + i])) +
                numerics::bf16_to_float(rows[256 + i]);
            EXPECT_NE(numerics::bf16_from_float(sum), small.stages[0].y[i]);
            small.stages[0].y[i] = numerics::bf16_from_float(sum);
        }
    };
    expect_failure(judge_after(&small, plant), "the sum of its combine rows is");
}

TEST(Judge, RejectsWhatIsNotZeroWithoutLiveSlots) {
    for (const std::uint16_t planted : {0x0001, 0x8000, 0x3F80}) {
        SmallCase small(small_shape(false));
        small.inputs[0].topk_idx.assign(16, -1);
        ASSERT_TRUE(evaluate_layer(small.problem, &small.stages).ok());
        const auto expected = take_expected(small.stages);
        const RankJudgement right = judge(small, expected)[0];
        EXPECT_TRUE(right.ok) << right.first_failure;
        EXPECT_EQ(right.num_slots, 0);
        expect_failure(judge_after(&small, [&] { small.stages[0].y[300] = planted; }),
                       "token 1 y column 44");
    }
}

TEST(Judge, ARankWithoutTokensPasses) {
    SmallCase small(small_shape(true));
    small.inputs[0].num_tokens = 0;
    ASSERT_TRUE(evaluate_layer(small.problem, &small.stages).ok());
    for (const RankJudgement& verdict : judge(small, take_expected(small.stages))) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
    }
}

TEST(Judge, JudgesTheSharedExpertAlike) {
    SmallCase codes(small_shape(true));
    expect_failure(judge_after(&codes, [&] { codes.stages[0].shared_act[130] ^= 1; }),
                   "token 1 shared expert second-GEMM input column 2");
    SmallCase rows(small_shape(true));
    expect_failure(judge_after(&rows, [&] { rows.stages[0].shared_row[256 + 7] += 1; }),
                   "token 1 shared expert second-GEMM output column 7");
    SmallCase scales(small_shape(true));
    expect_failure(
        judge_after(&scales, [&] { scales.stages[0].shared_act_scale[0] += 0x00800000U; }),
        "token 0 shared expert second-GEMM input columns 0..127: scale");
}

TEST(Judge, RejectsWhatIsRightInEveryStageButFarFromTheBitTrueLayer) {
    SmallCase small(small_shape(false));
    std::vector<RankExpected> expected = take_expected(small.stages);
    for (std::size_t i = 0; i < expected[0].y.size(); i += 3) expected[0].y[i] ^= 0x0008;
    expect_failure(judge(small, expected), "against the bit-true layer: relative L2");
}

// One output column dwarfs the others: an error in a small one counts in units of its own RMS only
// if the case is judged per column.
TEST(Judge, ScaleCasesAreJudgedPerColumn) {
    for (const bool per_column : {false, true}) {
        SmallCase small(small_shape(false));
        for (ExpertData& expert : small.source.experts) {
            for (std::size_t group = 0; group < 4; ++group) expert.down.scales[group] = 170;
        }
        small.problem.per_column = per_column;
        ASSERT_TRUE(evaluate_layer(small.problem, &small.stages).ok());
        const auto expected = take_expected(small.stages);
        EXPECT_TRUE(judge(small, expected)[0].ok) << judge(small, expected)[0].first_failure;
        const Place place = first_live(small);
        const auto plant = [&] {
            row_of(&small, place)[9] += 20;
            std::vector<RankStages>& stages = small.stages;
            const std::size_t token = static_cast<std::size_t>(place.token);
            TokenRows rows{
                reinterpret_cast<const std::uint8_t*>(stages[0].combine.data() + token * 512),
                512,
                small.inputs[0].topk_idx.data() + token * 2,
                nullptr,
                2,
                4};
            stages[0].y[token * 256 + 9] = combined_value(rows, 9);
        };
        const std::vector<RankJudgement> verdicts = judge_after(&small, plant);
        EXPECT_EQ(verdicts[0].ok, !per_column) << verdicts[0].first_failure;
    }
}

// One BF16 step too many, under three tolerances.
TEST(Judge, ElementAndRowAreBoundedSeparately) {
    SmallCase small(small_shape(false));
    const std::vector<RankExpected> expected = take_expected(small.stages);
    const Place place = first_live(small);
    row_of(&small, place)[9] += 1;
    const auto token = static_cast<std::size_t>(place.token);
    const TokenRows rows{
        reinterpret_cast<const std::uint8_t*>(small.stages[0].combine.data() + token * 512),
        512,
        small.inputs[0].topk_idx.data() + token * 2,
        nullptr,
        2,
        4};
    small.stages[0].y[token * 256 + 9] = combined_value(rows, 9);
    expect_failure(judge(small, expected), "second-GEMM output column 9");
    expect_failure(judge(small, expected, {1.0, 1e-6}), "second-GEMM output row: RMS beyond");
    const RankJudgement loose = judge(small, expected, {1.0, 1.0})[0];
    EXPECT_TRUE(loose.ok) << loose.first_failure;
    EXPECT_GT(loose.worst_excess, 1e-5);
}

TEST(Judge, AnErrorOfTheWeightSourceIsHandedOn) {
    class Broken : public WeightSource {
      public:
        Status expert(int, ExpertBytes*) override { return {Code::kBadCheckpoint, "gone"}; }
        Status shared_expert(SharedExpertBytes*) override { return {Code::kBadCheckpoint, "gone"}; }
    };
    SmallCase small(small_shape(false));
    Broken broken;
    small.problem.weights = &broken;
    std::vector<RankJudgement> verdicts;
    const Status status = judge_layer(small.problem, views(small), take_expected(small.stages),
                                      kCpuTolerance, &verdicts);
    EXPECT_EQ(status.code(), Code::kBadCheckpoint);
}

}  // namespace
}  // namespace gcmoe::reference
