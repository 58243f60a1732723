// The stand-alone loop of gcmoe bench: its tasks, what is launched and judged, what follows from
// its times. The product's sources over stand-ins for the GPU.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench_device/fake_device.hpp"
#include "cuda/measure/judge_loop.hpp"
#include "tools/gcmoe/bench_loop.hpp"

namespace gcmoe::cli {
namespace {

using cuda::measure::LoopGeometry;
using cuda::measure::LoopTask;
using test::fake_device;

checkpoint::ModelEntry tiny_model() {
    checkpoint::ModelEntry model;
    model.name = "tiny";
    model.hidden = 256;
    model.inter = 128;
    model.num_experts = 32;
    model.topk = 4;
    return model;
}

// Tasks read every tile once, and tokens of their own expert and GEMM.
TEST(LoopGeometryTest, TasksCoverEveryTileOnce) {
    const LoopGeometry geometry{6, 3, 5, 8, 1};
    EXPECT_EQ(geometry.num_tasks(), 5U * (3 + 3));
    EXPECT_EQ(geometry.tile_bytes(), 5U * 3 * 768 * 384 * 17 / 32);
    std::set<std::uint32_t> tiles;
    std::set<std::pair<std::uint32_t, std::uint32_t>> tokens;  // first chunk, chunks
    for (std::uint32_t number = 0; number < geometry.num_tasks(); ++number) {
        const LoopTask task = geometry.task(number);
        ASSERT_LE((task.index + 1) * 4, task.row_tiles);
        for (std::uint32_t tile = 0; tile < 4 * task.chunks; ++tile) {
            EXPECT_TRUE(tiles.insert(task.first_tile + 4 * task.index * task.chunks + tile).second);
        }
        tokens.insert({task.token_chunk, task.chunks});
    }
    EXPECT_EQ(tiles.size(), geometry.num_tiles());
    EXPECT_EQ(*tiles.rbegin() + 1, geometry.num_tiles());
    std::uint32_t next = 0;
    for (const auto& [first, chunks] : tokens) {
        EXPECT_EQ(first, next);
        next += chunks;
    }
    EXPECT_EQ(next, geometry.num_token_chunks());
    EXPECT_EQ(tokens.size(), 2U * 5);
}

TEST(LoopGeometryTest, RoundsOfACta) {
    const LoopGeometry geometry{2, 1, 5, 8, 1};  // ten tasks
    EXPECT_EQ(cuda::measure::loop_rounds(geometry, 4, 0), 3);
    EXPECT_EQ(cuda::measure::loop_rounds(geometry, 4, 2), 2);
    EXPECT_EQ(cuda::measure::loop_rounds(geometry, 12, 9), 1);
    EXPECT_EQ(cuda::measure::loop_rounds(geometry, 12, 10), 0);
}

class LoopDeviceTest : public testing::Test {
  protected:
    void SetUp() override {
        fake_device() = {};
        plan_.warm = 2;
        plan_.timed = 3;
        plan_.loop_sms = {3, 5};
    }
    Status measure(int rows, std::vector<LoopPoint>* points) {
        std::unique_ptr<LoopDevice> device;
        EXPECT_TRUE(make_gpu_loop(plan_, &device).ok());
        return device->measure(tiny_model(), rows, points);
    }
    BenchPlan plan_;
};

TEST_F(LoopDeviceTest, LoopsAndCopiesTakeTurns) {
    // Warm launches are slow; then 10, 20, 30 for the two loops and the copies.
    fake_device().us = [](int n) { return n < 6 ? 1e9 : 10.0 * (1 + n % 3) + (n < 9 ? 5 : 0); };
    std::vector<LoopPoint> points;
    const Status status = measure(8, &points);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(fake_device().loops,
              (std::vector<int>{3, 5, 3, 5, 3, 5, 3, 5, 3, 5, 3, 5}));  // judged, then timed
    EXPECT_EQ(fake_device().copies, std::vector<std::size_t>(5, 32U * 3 * 256 * 128 * 17 / 32));
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(points[i].sms, plan_.loop_sms[i]);
        EXPECT_EQ(points[i].rows, 8);
        EXPECT_EQ(points[i].median_us, 10.0 * (1 + static_cast<double>(i)));
        EXPECT_EQ(points[i].min_us, points[i].median_us);
        EXPECT_EQ(points[i].copy_us, 30);
        EXPECT_GT(points[i].error, 0);
        EXPECT_LT(points[i].error, 1e-5);
    }
}

TEST_F(LoopDeviceTest, ManyRowsAreJudgedToo) {
    std::vector<LoopPoint> points;
    const Status status = measure(24, &points);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(points.back().error, 1e-5);
}

// One bit of one of the sums: the fourth read of each task.
TEST_F(LoopDeviceTest, AWrongSumEndsTheMeasurement) {
    for (const int read : {3, 7, 15, 31}) {
        fake_device() = {};
        fake_device().damaged_read = read;
        fake_device().damaged_byte = 3;  // of row 0, token 0: the exponent
        std::vector<LoopPoint> points;
        const Status status = measure(8, &points);
        EXPECT_EQ(status.code(), Code::kInternal) << read;
        EXPECT_NE(status.message().find("tiny, 8 rows"), std::string::npos) << status.message();
    }
}

TEST(LoopTargetTest, RowsAreThoseOfAMeanExpert) {
    const checkpoint::ModelEntry model = tiny_model();  // an eighth of the experts a token
    EXPECT_EQ(loop_rows_for(model, 1), 8);
    EXPECT_EQ(loop_rows_for(model, 64), 8);
    EXPECT_EQ(loop_rows_for(model, 65), 16);
    EXPECT_EQ(loop_rows_for(model, 512), 64);
}

TEST(LoopTargetTest, TheFastestLoopThatLeavesSmsSpeaks) {
    const checkpoint::ModelEntry model = tiny_model();
    std::vector<LoopPoint> loops;
    for (const auto& [rows, sms, us] :
         {std::tuple(8, 116, 50.0), std::tuple(8, 124, 48.0), std::tuple(8, 132, 40.0),
          std::tuple(16, 132, 60.0), std::tuple(24, 128, 80.0)}) {
        LoopPoint point;
        point.model = model.name;
        point.shape.hidden = model.hidden;
        point.shape.inter = model.inter;
        point.rows = rows;
        point.sms = sms;
        point.median_us = us;
        loops.push_back(point);
    }
    // 4: too few tokens; 128: 16 rows only on all SMs; 512: no loop of 64 rows.
    const std::vector<LoopTarget> targets = loop_targets(model, {4, 8, 128, 192, 512}, loops, 132);
    ASSERT_EQ(targets.size(), 2U);
    EXPECT_EQ(targets[0].tokens, 8);
    EXPECT_EQ(targets[0].sms, 124);
    EXPECT_NEAR(targets[0].touched, 32 * (1 - 0.3436089), 1e-5);
    EXPECT_NEAR(targets[0].loop_us, 48.0 * (1 - 0.3436089), 1e-5);
    EXPECT_NEAR(targets[0].target_us(), targets[0].loop_us + 12, 1e-9);
    EXPECT_NEAR(targets[0].floor_us, targets[0].touched * 3 * 256 * 128 * 17 / 32 / 4.3e6, 1e-9);
    EXPECT_EQ(targets[1].rows, 24);
    EXPECT_EQ(targets[1].sms, 128);
    const auto object = target_json(targets[0], {});
    EXPECT_EQ(object["kind"], "loop_target");
    EXPECT_NEAR(object["ratio"].get<double>(), targets[0].target_us() / targets[0].floor_us, 1e-3);
    EXPECT_NE(target_line(targets[0]).find("8 tokens, 21.0 experts"), std::string::npos)
        << target_line(targets[0]);
}

TEST(LoopTargetTest, LinesHaveTheColumnsOfTheHead) {
    LoopPoint point;
    point.model = "tiny";
    point.shape.hidden = 256;
    point.shape.inter = 128;
    point.rows = 8;
    point.sms = 116;
    point.median_us = 2;
    point.copy_us = 1;
    EXPECT_EQ(loop_line(point).size(), loop_head().size());
    const auto object = loop_json(point, {});
    EXPECT_EQ(object["copy_percent"], 50.0);
    EXPECT_NEAR(object["gb_s"].get<double>(), 32 * 3 * 256 * 128 * 17 / 32 / 2e3, 1e-3);
}

}  // namespace
}  // namespace gcmoe::cli
