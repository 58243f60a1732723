// Which launches a bench makes, times and compares: the product's source over stand-ins for the
// GPU, whose times the tests choose.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bench_device/fake_device.hpp"
#include "tools/gcmoe/bench_ablations.hpp"
#include "tools/gcmoe/bench_device.hpp"

namespace gcmoe::cli {
namespace {

using test::fake_device;

constexpr double kWarmUs = 1e9;

class GpuBenchTest : public testing::Test {
  protected:
    void SetUp() override {
        fake_device() = {};
        model_.name = "tiny";
        model_.hidden = 256;
        model_.inter = 128;
        model_.num_experts = 8;
        model_.topk = 2;
        model_.shared_inter = 128;
        plan_.backend = "cpu";
        plan_.variants.resize(1);
        plan_.reference.name = "reference launch";
        plan_.seeds = 3;
        plan_.decode = true;
        plan_.warm = 1;
        plan_.timed = 3;
    }
    void make() {
        ASSERT_TRUE(make_gpu_bench(plan_, &device_).ok());
        ASSERT_TRUE(device_->open_model(model_).ok());
    }
    std::vector<BenchPoint> measure(int tokens) {
        make();
        std::vector<BenchPoint> points;
        const Status status = device_->measure(tokens, &points);
        EXPECT_TRUE(status.ok()) << status.message();
        return points;
    }
    // Calls of the timer that begin with these words.
    static std::ptrdiff_t num_calls(const std::string& words) {
        const auto& calls = fake_device().calls;
        return std::count_if(calls.begin(), calls.end(),
                             [&](const std::string& call) { return call.rfind(words, 0) == 0; });
    }

    checkpoint::ModelEntry model_;
    BenchPlan plan_;
    std::unique_ptr<BenchDevice> device_;
};

// Works in turns: three seeds, then the copies.
TEST_F(GpuBenchTest, MedianOfMediansOverTimedTurns) {
    make();
    std::vector<BenchPoint> points;
    // One token has two experts whatever the seed: one copy serves all.
    constexpr int kWorks = 3 + 1;
    fake_device().us = [&](int call) {
        const int turn = call / kWorks;
        if (turn < plan_.warm) return kWarmUs;
        const double seeds[] = {30, 10, 20};
        const int work = call % kWorks;
        return work < 3 ? seeds[work] + turn : 5.0 + turn;
    };
    ASSERT_TRUE(device_->measure(1, &points).ok());
    ASSERT_EQ(points.size(), 1U);
    const BenchPoint& point = points.front();
    // Turns 1, 2, 3 are timed: the median is that of turn 2.
    EXPECT_EQ(point.seeds[0].median_us, 32);
    EXPECT_EQ(point.seeds[1].median_us, 12);
    EXPECT_EQ(point.seeds[2].median_us, 22);
    EXPECT_EQ(point.seeds[2].min_us, 21);
    EXPECT_EQ(point.median_seed, 2U);
    for (const BenchSeed& seed : point.seeds) {
        EXPECT_EQ(seed.touched, 2);
        EXPECT_EQ(seed.copy_us, 7);
    }
    const auto bytes = static_cast<std::size_t>(2 * expert_bytes(point.shape));
    EXPECT_EQ(fake_device().copies, std::vector<std::size_t>(4, bytes));
    EXPECT_FALSE(point.paper_us || point.burst_us || point.sustained_us || point.verified);
    EXPECT_EQ(num_calls("once"), 4 * kWorks);
    EXPECT_EQ(fake_device().calls.size(), 16U);
    ASSERT_TRUE(point.plan.has_value());
    EXPECT_GT(point.plan->compute_units, 0);
}

TEST_F(GpuBenchTest, TouchedExpertsAreThoseOfTheRouting) {
    std::vector<BenchPoint> counted;
    const std::unique_ptr<BenchDevice> counter = make_floor_counter(plan_);
    ASSERT_TRUE(counter->open_model(model_).ok());
    ASSERT_TRUE(counter->measure(3, &counted).ok());
    const std::vector<BenchPoint> points = measure(3);
    for (std::size_t seed = 0; seed < 3; ++seed) {
        EXPECT_EQ(points[0].seeds[seed].touched, counted[0].seeds[seed].touched) << seed;
        EXPECT_EQ(points[0].seeds[seed].seed, static_cast<int>(seed));
    }
}

TEST_F(GpuBenchTest, PaperWindowsOnTheMedianSeed) {
    plan_.paper = true;
    const int decode_works = (plan_.warm + plan_.timed) * 4;
    fake_device().us = [=](int call) {
        const int launch = call - decode_works;
        if (launch < 0) return static_cast<double>(call % 4);  // seed 1 is the median
        if (launch < 10) return kWarmUs;
        const int window = (launch - 10) / 100;
        return window + (launch % 2 == 0 ? 99.0 : 101.0);  // means 100, 101 .. 129
    };
    const BenchPoint point = measure(1).front();
    EXPECT_EQ(point.median_seed, 1U);
    EXPECT_EQ(point.paper_us, 115);
    EXPECT_EQ(point.rated_us(), 115);
    EXPECT_EQ(num_calls("window 10"), 1 + 30);
    EXPECT_EQ(num_calls("window 100"), 30);
}

TEST_F(GpuBenchTest, PaperAloneTakesTheMedianOfAllSeeds) {
    plan_.paper = true;
    plan_.decode = false;
    const double seeds[] = {20, 30, 10};
    fake_device().us = [=](int call) { return seeds[call / (10 + 30 * 100)]; };
    const BenchPoint point = measure(1).front();
    EXPECT_EQ(point.paper_us, 20);
    EXPECT_EQ(point.median_seed, 0U);
    EXPECT_FALSE(point.chosen().median_us.has_value());
    EXPECT_FALSE(point.chosen().copy_us.has_value());
    EXPECT_EQ(num_calls("once"), 0);
}

TEST_F(GpuBenchTest, SustainedTakesTheSeedsInTurn) {
    plan_.sustained = true;
    const BenchPoint point = measure(1).front();
    EXPECT_EQ(point.sustained_us, 2);  // the stand-in's: the seconds it was asked for
    EXPECT_EQ(point.burst_us, 1);
    EXPECT_EQ(fake_device().calls.back(), "back to back 3");
    EXPECT_EQ(num_calls("once"), 4 * 4 + plan_.timed);
}

TEST_F(GpuBenchTest, VariantsAreMeasuredInTurnsAndShareTheirCopies) {
    plan_.variants.resize(3);
    plan_.variants[1].name = "second";
    plan_.variants[1].plan.row_block = 8;
    plan_.variants[2].name = "no overlap";
    plan_.variants[2].plan.overlap = false;
    plan_.verify = true;
    const std::vector<BenchPoint> points = measure(1);
    ASSERT_EQ(points.size(), 3U);
    EXPECT_EQ(points[1].variant, "second");
    EXPECT_EQ(points[1].plan->row_block, 8);
    EXPECT_FALSE(points[2].plan->overlap);
    for (const BenchPoint& point : points) EXPECT_TRUE(point.verified);
    EXPECT_EQ(num_calls("once"), 4 * (3 * 3 + 1));
    // Three variants of three seeds, and every seed's reference once.
    EXPECT_EQ(fake_device().reads.size(), 9U + 3U);
}

// Fused: the shared expert's bytes are copied, too; apart: two launches a seed, both compared.
TEST_F(GpuBenchTest, FormsOfTheSharedExpert) {
    plan_.seeds = 1;
    plan_.verify = true;
    plan_.variants.resize(3);
    plan_.variants[1].name = "fused";
    plan_.variants[1].shared = SharedForm::kFused;
    plan_.variants[2].name = "apart";
    plan_.variants[2].shared = SharedForm::kApart;
    const std::vector<BenchPoint> points = measure(2);
    ASSERT_EQ(points.size(), 3U);
    EXPECT_EQ(points[0].shape.shared_inter, 0);
    EXPECT_EQ(points[1].shape.shared_inter, 128);
    EXPECT_EQ(points[2].shape.shared_inter, 128);
    EXPECT_EQ(points[1].chosen().touched, points[0].chosen().touched);
    EXPECT_EQ(points[2].chosen().touched, points[0].chosen().touched);
    const auto routed =
        static_cast<std::size_t>(points[0].chosen().touched * expert_bytes(points[0].shape));
    EXPECT_EQ(fake_device().copies[0], routed);
    EXPECT_EQ(fake_device().copies[1], routed + 3 * 256 * 128);
    // Routed, fused, routed again (its reference is known), shared alone.
    EXPECT_EQ(fake_device().reads.size(), 2U + 2U + 1U + 2U);
}

// In turns with the default, whose own launches nothing follows.
TEST_F(GpuBenchTest, ClosedLaunchesAreFollowedByTheirWork) {
    plan_.seeds = 1;
    plan_.warm = 0;
    plan_.timed = 1;
    plan_.verify = true;
    plan_.variants.resize(1);
    add_ablation("closing", plan_.variants.front(), &plan_.variants);
    const std::vector<BenchPoint> points = measure(2);
    ASSERT_EQ(points.size(), 6U);
    // Eleven regions without a shared expert's, none above its step of 1024 bytes.
    const std::vector<std::string> once = {"graph", "node", "node, meets", "node, clears 10240",
                                           "node, clears 10240, meets"};
    std::vector<std::string> wanted = once;  // the verified launches, then the timed ones
    wanted.insert(wanted.end(), once.begin(), once.end());
    EXPECT_EQ(fake_device().closings, wanted);
    EXPECT_EQ(fake_device().reads.size(), 1U + 6U);
    for (const BenchPoint& point : points) EXPECT_TRUE(point.verified);
    EXPECT_EQ(point_json(points[0], {})["config"]["closing"], "none");
    EXPECT_EQ(point_json(points[0], {})["config"]["tuned"],
              "none: tables are for a rank that has a GPU for itself");
    EXPECT_EQ(point_json(points[5], {})["config"]["closing"], "both");
}

// Weights and inputs of their own, a reference of their own; the same routing and the same bytes.
TEST_F(GpuBenchTest, EveryFormOfDecodeIsVerifiedByItself) {
    plan_.seeds = 1;
    plan_.verify = true;
    model_.inter = 256;  // two chunks a row, which one window does not hold
    plan_.variants.resize(1);
    add_ablation("decode", plan_.variants.front(), &plan_.variants);
    const std::vector<BenchPoint> points = measure(3);
    ASSERT_EQ(points.size(), 3U);
    EXPECT_EQ(fake_device().reads.size(), 3U + 3U);
    for (const BenchPoint& point : points) {
        EXPECT_EQ(point.chosen().touched, points[0].chosen().touched);
        EXPECT_EQ(point.whole_floor_us(), points[0].whole_floor_us());
    }
    const std::set<std::size_t> copied(fake_device().copies.begin(), fake_device().copies.end());
    EXPECT_EQ(copied.size(), 1U);
    EXPECT_EQ(points[2].shape.activation_scale, ActivationScale::kUe8m0K32);
    EXPECT_EQ(point_json(points[0], {})["config"]["decode"], "row-factors");
    EXPECT_EQ(point_json(points[1], {})["config"]["decode"], "chunk-factors");
    EXPECT_EQ(point_json(points[2], {})["config"]["decode"], "k32");
}

// Weights that fit a row's window although they are to have chunk factors are no measurement.
TEST_F(GpuBenchTest, WeightsOfAnotherFormEndTheBench) {
    model_.hidden = 128;  // one chunk a row: no row is wider than its chunk
    model_.inter = 128;
    plan_.variants[0].decode = DecodeForm::kChunkFactors;
    make();
    std::vector<BenchPoint> points;
    const Status status = device_->measure(1, &points);
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("weights for chunk-factors: 16 matrices have row factors"),
              std::string::npos)
        << status.message();
}

TEST_F(GpuBenchTest, OtherBitsEndTheBench) {
    plan_.verify = true;
    // Read 0 is the reference of seed 0, 1 its launch, 2 and 3 those of seed 1.
    fake_device().damaged_read = 3;
    fake_device().damaged_byte = 2 * (256 + 17);
    make();
    std::vector<BenchPoint> points;
    const Status status = device_->measure(2, &points);
    EXPECT_EQ(status.code(), Code::kInternal);
    for (const char* words : {"tiny, default, 2 tokens, seed 1: y is 0x", "token 1, column 17",
                              "a reference launch gives 0x"}) {
        EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
    EXPECT_TRUE(points.empty());
    EXPECT_TRUE(fake_device().calls.empty()) << "nothing is timed after that";
}

TEST_F(GpuBenchTest, EmptyLaunchReadsNothing) {
    plan_.verify = true;
    plan_.variants[0].shared = SharedForm::kApart;
    make();
    BenchPoint point;
    ASSERT_TRUE(device_->measure_empty(&point).ok());
    EXPECT_TRUE(point.masked);
    EXPECT_EQ(point.seeds.size(), 1U);
    EXPECT_EQ(point.chosen().touched, 0);
    EXPECT_EQ(point.shape.shared_inter, 0);
    EXPECT_EQ(point.whole_floor_us(), 0);
    EXPECT_TRUE(point.chosen().median_us.has_value());
    EXPECT_FALSE(point.chosen().copy_us.has_value());
    EXPECT_TRUE(fake_device().copies.empty());
    const auto json = point_json(point, {});
    EXPECT_EQ(json["kind"], "empty");
    EXPECT_TRUE(json["ratio"].is_null());
    EXPECT_TRUE(json["tflops"].is_null());
}

TEST_F(GpuBenchTest, JsonOfAMeasuredPoint) {
    plan_.seeds = 1;
    plan_.sustained = true;
    fake_device().us = [](int) { return 0.25; };
    const BenchPoint point = measure(1).front();
    BenchOrigin origin;
    origin.gpu = "H200";
    origin.driver = "580.1";
    origin.date = "2026-12-01T00:00:00Z";
    const auto json = point_json(point, origin);
    EXPECT_EQ(json["median_us"], 0.25);
    EXPECT_NEAR(json["ratio"].get<double>(), 0.25 / floor_us(2 * expert_bytes(point.shape)), 1e-3);
    // Two slots of 6 * 256 * 128 operations.
    EXPECT_NEAR(json["tflops"].get<double>(), 2 * 6.0 * 256 * 128 / 0.25 / 1e6, 1e-3);
    EXPECT_NEAR(json["working_set_gb_s"].get<double>(), 2 * 3.0 * 256 * 128 / 2 / 0.25e3, 1e-3);
    EXPECT_EQ(json["sustained_us"], 2);
    EXPECT_EQ(json["config"]["overlap"], true);
    EXPECT_EQ(json["gpu"], "H200");
    EXPECT_EQ(json["seeds"].size(), 1U);
}

// A plan that the backend refuses is refused by the option's name before anything runs.
// With logs: the trace of the median seed, all of its launches.
TEST_F(GpuBenchTest, ATracedPointHasItsTrace) {
    plan_.variants.push_back(plan_.variants.front());
    plan_.variants.back().name = "traced";
    plan_.variants.back().trace_events = 4096;
    const std::vector<BenchPoint> points = measure(3);
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(points[0].trace.num_events(), 0U);
    const trace::Trace& trace = points[1].trace;
    EXPECT_EQ(trace.num_dropped(), 0U);
    std::set<std::uint32_t> generations;
    for (const trace::Track& track : trace.tracks) {
        for (const trace::Event& event : track.events) generations.insert(event.generation);
    }
    EXPECT_EQ(generations.size(), 1U + 1U + 3U);  // the first, the warm one, the timed ones
}

TEST_F(GpuBenchTest, ARefusedPlanIsHandedOn) {
    plan_.variants[0].plan.row_block = 7;
    make();
    std::vector<BenchPoint> points;
    const Status status = device_->measure(1, &points);
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("row_block = 7"), std::string::npos) << status.message();
}

// A tuned table speaks for the default alone: its variants would differ in more than one thing.
TEST(BenchOptionsTest, AblationsGoByTheRulesUnlessATableIsNamed) {
    const auto tables = [](const BenchOptions& options) {
        BenchPlan plan;
        EXPECT_TRUE(make_bench_plan(options, &plan).ok());
        std::set<std::string> names;
        for (const BenchVariant& variant : plan.variants) names.insert(variant.plan.tuned);
        return names;
    };
    BenchOptions options;
    EXPECT_EQ(tables(options), std::set<std::string>{""});
    options.ablation = "all";
    EXPECT_EQ(tables(options), std::set<std::string>{"none"});
    options.plan.tuned = "mine.jsonl";
    EXPECT_EQ(tables(options), std::set<std::string>{"mine.jsonl"});
}

}  // namespace
}  // namespace gcmoe::cli
