#include "judge_fixtures.hpp"

#include <gtest/gtest.h>

namespace gcmoe::reference {

std::vector<RankOutputs> views(const SmallCase& small) {
    std::vector<RankOutputs> outputs;
    for (const RankStages& stage : small.stages) outputs.push_back(stage.view(small.shape));
    return outputs;
}

std::vector<RankJudgement> judge(const SmallCase& small, const std::vector<RankExpected>& expected,
                                 const Tolerance& tolerance) {
    std::vector<RankJudgement> verdicts;
    EXPECT_TRUE(judge_layer(small.problem, views(small), expected, tolerance, &verdicts).ok());
    return verdicts;
}

std::vector<RankJudgement> judge_after(SmallCase* small, const std::function<void()>& plant) {
    const std::vector<RankExpected> expected = take_expected(small->stages);
    plant();
    return judge(*small, expected);
}

Place first_live(const SmallCase& small) {
    for (const Batch& batch : make_batches(small.shape, small.inputs)) {
        for (const Place& place : batch.rows) {
            if (place.rank == 0 && place.slot >= 0) return place;
        }
    }
    return {};
}

std::uint8_t* codes_of(SmallCase* small, const Place& place) {
    const auto expert = expert_of(small->shape, small->inputs[0], place.token, place.slot);
    const auto owner = static_cast<std::size_t>(expert / small->shape.experts_per_rank());
    const std::size_t idx = capture_idx(small->shape, 8, place);
    return small->stages[owner].act.data() + idx * static_cast<std::size_t>(small->shape.inter);
}

std::uint32_t* scales_of(SmallCase* small, const Place& place) {
    const auto expert = expert_of(small->shape, small->inputs[0], place.token, place.slot);
    const auto owner = static_cast<std::size_t>(expert / small->shape.experts_per_rank());
    const std::size_t idx = capture_idx(small->shape, 8, place);
    return small->stages[owner].act_scale.data() +
           idx * static_cast<std::size_t>(small->shape.inter / 128);
}

std::uint16_t* row_of(SmallCase* small, const Place& place) {
    return small->stages[0].combine.data() + slot_idx(small->shape, place.token, place.slot) *
                                                 static_cast<std::size_t>(small->shape.hidden);
}

void expect_failure(const std::vector<RankJudgement>& verdicts, const std::string& text) {
    EXPECT_FALSE(verdicts[0].ok);
    EXPECT_NE(verdicts[0].first_failure.find(text), std::string::npos) << verdicts[0].first_failure;
    EXPECT_TRUE(verdicts[1].ok) << verdicts[1].first_failure;
}

}  // namespace gcmoe::reference
