// Which launches a tuning makes, times and compares: the product's source over stand-ins for the
// GPU, whose times the tests choose.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bench_device/fake_device.hpp"
#include "tools/gcmoe/bench_device.hpp"
#include "tools/gcmoe/tune_device.hpp"

namespace gcmoe::cli {
namespace {

using test::fake_device;

class GpuTunerTest : public testing::Test {
  protected:
    void SetUp() override {
        fake_device() = {};
        model_.name = "tiny";
        model_.hidden = 256;
        model_.inter = 128;
        model_.num_experts = 8;
        model_.topk = 2;
        plan_.backend = "cpu";
        plan_.variants.resize(1);
        plan_.seeds = 2;
        ASSERT_TRUE(make_gpu_tuner(plan_, &tuner_).ok());
        ASSERT_TRUE(tuner_->open_model(model_).ok());
        ASSERT_TRUE(make_tune_site(plan_, model_, 3, 132, &site_).ok());
    }
    // Plans that differ in their ring.
    static std::vector<Candidate> candidates(int count) {
        std::vector<Candidate> made(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) {
            Candidate& candidate = made[static_cast<std::size_t>(i)];
            candidate.plan.partition = {1, 2};
            candidate.plan.row_block = 8;
            candidate.plan.ring_blocks = 1 << (i % 20);
            candidate.plan.lead_blocks = 1;
        }
        return made;
    }

    checkpoint::ModelEntry model_;
    BenchPlan plan_;
    TuneSite site_;
    std::unique_ptr<TuneDevice> tuner_;
};

// Candidates and routings in turns; 20 of them need two workspaces a routing.
TEST_F(GpuTunerTest, MediansOfTimedTurns) {
    ASSERT_TRUE(tuner_->open(site_, candidates(20), {0, 1}, false).ok());
    ASSERT_TRUE(tuner_->compare().ok());
    EXPECT_TRUE(fake_device().reads.empty()) << "outputs that others write, too, prove nothing";
    fake_device().us = [](int call) {
        const int turn = call / 40;
        return turn < 1 ? 1e9 : 100.0 * turn + call % 40;
    };
    std::vector<std::vector<double>> medians;
    ASSERT_TRUE(tuner_->time(1, 3, &medians).ok());
    EXPECT_EQ(fake_device().num_timed, 4 * 40);
    ASSERT_EQ(medians.size(), 20U);
    for (std::size_t i = 0; i < medians.size(); ++i) {
        const double first = 200.0 + 2 * static_cast<double>(i);
        EXPECT_EQ(medians[i], (std::vector<double>{first, first + 1})) << i;
    }
}

TEST_F(GpuTunerTest, EveryFinalistIsCompared) {
    const std::vector<Candidate> three = candidates(3);
    ASSERT_TRUE(tuner_->open(site_, three, {0, 1}, true).ok());
    ASSERT_TRUE(tuner_->compare().ok());
    EXPECT_EQ(fake_device().reads, std::vector<std::size_t>(6, 3 * 256 * 2));
    // The second candidate of the second routing: token 1, column 5.
    fake_device() = {};
    fake_device().damaged_read = 4;
    fake_device().damaged_byte = (256 + 5) * 2;
    const Status status = tuner_->compare();
    EXPECT_EQ(status.code(), Code::kInternal);
    for (const std::string& words :
         {std::string("tiny, 3 tokens, seed 1"), std::string("token 1, column 5"),
          candidate_text(three[1]), candidate_text(three[0])}) {
        EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
}

TEST_F(GpuTunerTest, APlanThatIsNoneIsRefused) {
    std::vector<Candidate> two = candidates(2);
    two[1].plan.row_block = 20;
    const Status status = tuner_->open(site_, two, {0}, false);
    EXPECT_NE(status.message().find("row_block = 20"), std::string::npos) << status.message();
    ASSERT_TRUE(tuner_->open(site_, candidates(1), {0}, false).ok()) << "and goes on";
    EXPECT_TRUE(tuner_->compare().ok());
}

}  // namespace
}  // namespace gcmoe::cli
