// The judge's stage (a) looks at the sums before the clamp: what it lets pass of them, and what
// not.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "judge_fixtures.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::reference {
namespace {

// What a typical sum of a slot is off by: tau of it, and the planted 4 tau.
constexpr double kPlanted = 4.0 * kHopperTolerance.element;

// A slot's first GEMM in FP64.
struct SlotSums {
    std::vector<double> gate;  // (inter)
    std::vector<double> up;    // (inter)
    double weight = 0;
};

SlotSums sums_of(const SmallCase& small, const Place& place) {
    const auto expert = expert_of(small.shape, small.inputs[0], place.token, place.slot);
    const ExpertData& data = small.source.experts[static_cast<std::size_t>(expert)];
    const CodedRow x = input_row(small.problem, place);
    SlotSums sums;
    for (int col = 0; col < small.shape.inter; ++col) {
        sums.gate.push_back(dot(data.gate.view(), col, x));
        sums.up.push_back(dot(data.up.view(), col, x));
    }
    sums.weight = static_cast<double>(routing_weight(small.problem, place));
    return sums;
}

// Of the columns with plain scales; kWideColumns have others.
constexpr int kWideColumns = 4;  // every fourth
double typical(const std::vector<double>& sums) {
    double squares = 0.0;
    std::size_t count = 0;
    for (std::size_t col = 0; col < sums.size(); ++col) {
        if (col % kWideColumns == 1) continue;
        squares += sums[col] * sums[col];
        ++count;
    }
    return std::sqrt(squares / static_cast<double>(count));
}

// A typical element of rank 0 whose gate sum was off by 4 tau of a typical one: how its code would
// be. Most elements hide that inside their half step; this one is near enough to a tie.
struct PlantedCode {
    Place place;
    std::size_t column = 0;
    std::uint8_t code = 0;
    bool found = false;
};

PlantedCode find_planted(SmallCase* small, const Place& place) {
    const SlotSums sums = sums_of(*small, place);
    const double gate_size = typical(sums.gate);
    const double up_size = typical(sums.up);
    const auto is_typical = [](double value, double size) {
        return value > 0.75 * size && value < 1.25 * size;
    };
    const double scale = static_cast<double>(numerics::bits_to_float(*scales_of(small, place)));
    for (std::size_t col = 0; col < sums.gate.size(); ++col) {
        if (col % kWideColumns == 1 || !is_typical(sums.gate[col], gate_size) ||
            !is_typical(std::abs(sums.up[col]), up_size)) {
            continue;
        }
        const auto value = [&](double gate) {
            return numerics::swiglu_fp64(gate, sums.up[col], small->shape.activation) * sums.weight;
        };
        const double right = value(sums.gate[col]);
        for (const double error : {kPlanted * gate_size, -kPlanted * gate_size}) {
            const double wrong = value(sums.gate[col] + error);
            const std::uint8_t code = numerics::e4m3_from_float(static_cast<float>(wrong / scale));
            const double seen = static_cast<double>(numerics::e4m3_to_float(code)) * scale;
            const double beyond = std::abs(seen - right) - e4m3_half_step(right / scale) * scale;
            if (beyond > 0.65 * std::abs(wrong - right)) return {place, col, code, true};
        }
    }
    return {};
}

PlantedCode find_planted(SmallCase* small) {
    for (const Batch& batch : make_batches(small->shape, small->inputs)) {
        for (const Place& place : batch.rows) {
            if (place.rank != 0) continue;
            const PlantedCode planted = find_planted(small, place);
            if (planted.found) return planted;
        }
    }
    return {};
}

void expect_planted_code_is_found(SmallCase* small) {
    const std::vector<RankExpected> expected = take_expected(small->stages);
    const RankJudgement right = judge(*small, expected, kHopperTolerance)[0];
    EXPECT_TRUE(right.ok) << right.first_failure;
    const PlantedCode planted = find_planted(small);
    ASSERT_TRUE(planted.found);
    std::uint8_t* code = codes_of(small, planted.place) + planted.column;
    EXPECT_NE(*code, planted.code);
    *code = planted.code;
    expect_failure(judge(*small, expected, kHopperTolerance),
                   "second-GEMM input column " + std::to_string(planted.column));
}

TEST(JudgeSums, RejectsASumFourTauOff) {
    SmallCase small(small_shape(false));
    expect_planted_code_is_found(&small);
}

// No half step hides an error of the largest element: the scale shows it.
TEST(JudgeSums, RejectsAScaleFromASumFourTauOff) {
    SmallCase small(small_shape(false));
    const std::vector<RankExpected> expected = take_expected(small.stages);
    const Place place = first_live(small);
    const SlotSums sums = sums_of(small, place);
    std::vector<double> values;
    std::size_t largest = 0;
    for (std::size_t col = 0; col < sums.gate.size(); ++col) {
        values.push_back(
            numerics::swiglu_fp64(sums.gate[col], sums.up[col], small.shape.activation) *
            sums.weight);
        if (std::abs(values[col]) > std::abs(values[largest])) largest = col;
    }
    values[largest] = numerics::swiglu_fp64(sums.gate[largest] + kPlanted * typical(sums.gate),
                                            sums.up[largest], small.shape.activation) *
                      sums.weight;
    requantise_row(values.data(), small.shape.inter, small.shape.activation_scale,
                   codes_of(&small, place), scales_of(&small, place));
    expect_failure(judge(small, expected, kHopperTolerance), "columns 0..127: scale");
}

// Sums of 10^4 in every fourth column, of which a clamp leaves 10.
void make_clamped_scale_case(SmallCase* small) {
    small->problem.shape.activation.clamp = 10.0F;
    small->shape.activation.clamp = 10.0F;
    small->problem.per_column = true;
    const std::size_t groups = static_cast<std::size_t>(small->shape.hidden / 32);
    for (ExpertData& expert : small->source.experts) {
        for (std::size_t i = 0; i < expert.gate.scales.size(); ++i) {
            if (i / groups % kWideColumns != 1) continue;
            expert.gate.scales[i] = static_cast<std::uint8_t>(expert.gate.scales[i] + 14);
            expert.up.scales[i] = static_cast<std::uint8_t>(expert.up.scales[i] + 14);
        }
    }
    ASSERT_TRUE(evaluate_layer(small->problem, &small->stages).ok());
}

TEST(JudgeSums, RejectsASumFourTauOffInAClampedScaleCase) {
    SmallCase small(small_shape(false));
    make_clamped_scale_case(&small);
    expect_planted_code_is_found(&small);
}

// Beyond the clamp nothing is left of an error of the sums, however large they are.
TEST(JudgeSums, RejectsACodeOneStepOffBeyondTheClamp) {
    SmallCase small(small_shape(false));
    make_clamped_scale_case(&small);
    const std::vector<RankExpected> expected = take_expected(small.stages);
    const Place place = first_live(small);
    const SlotSums sums = sums_of(small, place);
    std::size_t col = 1;
    while (sums.gate[col] < 1000.0 || std::abs(sums.up[col]) < 1000.0) col += kWideColumns;
    ASSERT_LT(col, sums.gate.size());
    --codes_of(&small, place)[col];  // from 448
    expect_failure(judge(small, expected, kHopperTolerance),
                   "second-GEMM input column " + std::to_string(col));
}

// A backend whose sums are off by less than tau, before a clamp that makes 10 of 10^4: all stages
// are right, and y may be anywhere.
TEST(JudgeSums, PassesSumsWithinTauUnderAClamp) {
    Shape shape = small_shape(false);
    shape.has_bias = true;
    SmallCase small(shape);
    const auto set_biases = [&](double share) {
        std::uint64_t seed = 0;
        for (ExpertData& expert : small.source.experts) {
            expert.down_bias.assign(256, 0.0F);
            for (std::vector<float>* biases : {&expert.gate_bias, &expert.up_bias}) {
                for (std::size_t col = 0; col < biases->size(); ++col) {
                    const double size = col % kWideColumns == 1 ? 16384.0 : 1.0;
                    const bool is_up = numerics::splitmix64(++seed) % 2 == 0;
                    (*biases)[col] = static_cast<float>((is_up ? share : -share) * size);
                }
            }
        }
    };
    set_biases(0.0);
    make_clamped_scale_case(&small);
    const std::vector<RankExpected> expected = take_expected(small.stages);
    set_biases(0.2 * kHopperTolerance.element);
    ASSERT_TRUE(evaluate_layer(small.problem, &small.stages).ok());
    set_biases(0.0);
    for (const RankJudgement& verdict : judge(small, expected, kHopperTolerance)) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
        EXPECT_FALSE(verdict.whole_judged);
    }
    EXPECT_FALSE(judge(small, expected)[0].ok);
}

TEST(JudgeSums, TheCpusToleranceJudgesScaleCasesEndToEnd) {
    SmallCase small(small_shape(false));
    small.problem.per_column = true;
    std::vector<RankExpected> expected = take_expected(small.stages);
    for (std::size_t i = 0; i < expected[0].y.size(); i += 3) expected[0].y[i] ^= 0x0008;
    expect_failure(judge(small, expected), "against the bit-true layer: relative L2");
    const RankJudgement verdict = judge(small, expected, kHopperTolerance)[0];
    EXPECT_TRUE(verdict.ok) << verdict.first_failure;
    EXPECT_FALSE(verdict.whole_judged);
    EXPECT_GT(verdict.rel_l2, kMaxRelL2);
    small.problem.per_column = false;
    expect_failure(judge(small, expected, kHopperTolerance), "relative L2");
}

// x all the same and weights of one scale: a share of the gate sums is exactly 0. In FP32 they are
// 10^-7 of their terms, which are 10^11: the clamp makes 10 of either.
class CancellingSums : public testing::Test {
  protected:
    CancellingSums() : small_(with_biases()) {
        small_.problem.shape.activation.clamp = 10.0F;
        small_.shape.activation.clamp = 10.0F;
        for (RankInputs& inputs : small_.inputs) {
            inputs.x.assign(inputs.x.size(), numerics::e4m3_from_float(448.0F));
            inputs.x_scale.assign(inputs.x_scale.size(), numerics::float_to_bits(0x1p27F));
        }
        for (ExpertData& expert : small_.source.experts) {
            expert.down_bias.assign(256, 0.0F);
            for (Mxfp4Matrix* matrix : {&expert.gate, &expert.up}) {
                matrix->scales.assign(matrix->scales.size(), 127);
            }
        }
    }

    static Shape with_biases() {
        Shape shape = small_shape(false);
        shape.has_bias = true;
        return shape;
    }

    // The layer with an error of the gate's sums: +error and -error in turn.
    std::vector<RankExpected> evaluate(float error) {
        for (ExpertData& expert : small_.source.experts) {
            expert.gate_bias.assign(128, error);
            for (std::size_t col = 0; col < 128; col += 2) expert.gate_bias[col] = -error;
            expert.up_bias.assign(128, 0.0F);
        }
        EXPECT_TRUE(evaluate_layer(small_.problem, &small_.stages).ok());
        return take_expected(small_.stages);
    }

    SmallCase small_;
};

TEST_F(CancellingSums, PassWithinWhatTheyMayBeOff) {
    evaluate(1e4F);
    const std::vector<RankStages> stages = small_.stages;
    const std::vector<RankExpected> expected = evaluate(0.0F);
    small_.stages = stages;
    const std::vector<RankJudgement> verdicts = judge(small_, expected);
    EXPECT_TRUE(verdicts[0].ok) << verdicts[0].first_failure;
    EXPECT_GT(verdicts[0].rel_l2, 2.0 * kMaxRelL2);
    EXPECT_LT(verdicts[0].rel_l2, verdicts[0].max_rel_l2);
    EXPECT_LT(verdicts[0].max_rel_l2, 0.7);
    EXPECT_LT(verdicts[0].worst_row_rms, kCpuTolerance.row_rms);
}

TEST_F(CancellingSums, DoNotHideAnotherY) {
    std::vector<RankExpected> expected = evaluate(0.0F);
    EXPECT_TRUE(judge(small_, expected)[0].ok);
    for (std::size_t i = 0; i < expected[0].y.size(); i += 2) expected[0].y[i] ^= 0x8000;
    expect_failure(judge(small_, expected), "against the bit-true layer: relative L2");
}

TEST_F(CancellingSums, DoNotHideASumThatIsOff) {
    evaluate(4e11F);  // more than the smallest sums that are not 0
    const std::vector<RankStages> stages = small_.stages;
    const std::vector<RankExpected> expected = evaluate(0.0F);
    small_.stages = stages;
    EXPECT_FALSE(judge(small_, expected)[0].ok);
}

TEST(JudgeSums, OrdinaryCasesKeepTheUsualBounds) {
    SmallCase small(small_shape(true));
    std::vector<RankExpected> expected = take_expected(small.stages);
    for (std::size_t i = 0; i < expected[0].y.size(); i += 3) expected[0].y[i] ^= 0x0008;
    for (const Tolerance& tolerance : {kCpuTolerance, kHopperTolerance}) {
        const RankJudgement verdict = judge(small, expected, tolerance)[0];
        EXPECT_FALSE(verdict.ok);
        EXPECT_EQ(verdict.max_rel_l2, kMaxRelL2);
        EXPECT_EQ(verdict.min_cosine, kMinCosine);
    }
}

}  // namespace
}  // namespace gcmoe::reference
