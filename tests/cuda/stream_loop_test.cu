// The stand-alone loop of `gcmoe bench --loop`: every sum of small layers against the host's.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/gpu_ranks.hpp"
#include "cuda/measure/judge_loop.hpp"
#include "cuda/measure/launch_timer.hpp"
#include "cuda/measure/stream_loop.hpp"

namespace gcmoe {
namespace {

using cuda::measure::judge_loop;
using cuda::measure::kLoopErrorBound;
using cuda::measure::kLoopRows;
using cuda::measure::LaunchTimer;
using cuda::measure::loop_rounds;
using cuda::measure::LoopPlace;
using cuda::measure::LoopShape;
using cuda::measure::StreamLoop;

class StreamLoopOnHopper : public testing::Test {
  protected:
    void SetUp() override {
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

testing::AssertionResult ok(const Status& status) {
    if (status.ok()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << status.message();
}

// Every row of every task of a launch.
void expect_all_sums(const StreamLoop& loop, int ctas) {
    std::vector<int> rows(cuda::measure::kLoopTaskRows);
    std::iota(rows.begin(), rows.end(), 0);
    for (int cta = 0; cta < ctas; ++cta) {
        const int rounds = loop_rounds(loop.geometry(), ctas, cta);
        for (int round = 0; round < rounds; ++round) {
            double error = NAN;
            ASSERT_TRUE(ok(judge_loop(loop, {ctas, cta, round}, rows, &error)));
            EXPECT_LE(error, kLoopErrorBound) << "CTA " << cta << ", round " << round;
            EXPECT_GT(error, 0) << "FP64 is not what the tensor core adds in";
        }
    }
}

// An odd number of chunks of I, CTAs that do not divide the tasks, three experts: 3 x (3 + 2) tasks
// on 4 CTAs. The second launch must not depend on what the first one left.
TEST_F(StreamLoopOnHopper, SumsAreTheHosts) {
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    for (const int rows : kLoopRows) {
        SCOPED_TRACE(rows);
        std::unique_ptr<StreamLoop> loop;
        ASSERT_TRUE(ok(StreamLoop::create({512, 384, 3, rows, 16, 4}, &loop)));
        ASSERT_EQ(loop->geometry().num_tasks(), 15U);
        for (const int ctas : {4, 4, 16}) {  // 16: one has nothing to do
            ASSERT_TRUE(ok(loop->launch(ctas, timer->stream())));
            expect_all_sums(*loop, ctas);
        }
    }
}

// A sum that no launch wrote is no sum, and a changed one is seen.
TEST_F(StreamLoopOnHopper, JudgeSeesWhatIsMissing) {
    std::unique_ptr<StreamLoop> loop;
    ASSERT_TRUE(ok(StreamLoop::create({256, 128, 1, 8, 2, 1}, &loop)));
    double error = 0;
    ASSERT_TRUE(ok(judge_loop(*loop, {2, 1, 0}, {7}, &error)));
    EXPECT_TRUE(std::isnan(error));
    std::unique_ptr<LaunchTimer> timer;
    ASSERT_TRUE(ok(LaunchTimer::create(0, &timer)));
    ASSERT_TRUE(ok(loop->launch(2, timer->stream())));
    ASSERT_TRUE(ok(judge_loop(*loop, {2, 1, 0}, {7}, &error)));
    EXPECT_LE(error, kLoopErrorBound);
    // Sums of task 1 taken for task 0's: other CTAs' places.
    ASSERT_TRUE(ok(judge_loop(*loop, {1, 0, 1}, {7}, &error)));
    EXPECT_GT(error, kLoopErrorBound);
}

TEST_F(StreamLoopOnHopper, SizesWithoutALoopAreRefused) {
    std::unique_ptr<StreamLoop> loop;
    const LoopShape good{512, 384, 1, 8, 1, 1};
    for (const auto& [member, value] :
         {std::pair(&LoopShape::hidden, 384), std::pair(&LoopShape::inter, 100),
          std::pair(&LoopShape::experts, 0), std::pair(&LoopShape::rows, 40),
          std::pair(&LoopShape::most_ctas, 0), std::pair(&LoopShape::kept, 0)}) {
        LoopShape shape = good;
        shape.*member = value;
        const Status status = StreamLoop::create(shape, &loop);
        EXPECT_EQ(status.code(), Code::kBadInput);
        EXPECT_NE(status.message().find(std::to_string(value)), std::string::npos)
            << status.message();
    }
    EXPECT_EQ(loop, nullptr);
}

}  // namespace
}  // namespace gcmoe
