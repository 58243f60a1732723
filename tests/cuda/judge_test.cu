// The judge on a GPU against the judge on the host: the same verdicts, numbers and sentences.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

#include "cuda/device/device_buffer.hpp"
#include "cuda/gpu_ranks.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "reference/case_inputs.hpp"
#include "reference/cuda/device_judge.hpp"
#include "reference/suite.hpp"

namespace gcmoe {
namespace {

using reference::CaseSize;
using reference::RankExpected;
using reference::RankJudgement;
using reference::RankOutputs;
using reference::RankStages;
using reference::SuiteCase;

testing::AssertionResult ok(const Status& status) {
    if (status.ok()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << status.message();
}

struct JudgeCase {
    const char* name;
    const char* line;  // of a suite
    ActivationScale form = ActivationScale::kFp32K128;
    WeightPlacement placement = WeightPlacement::kBeforeRequantise;
};

void PrintTo(const JudgeCase& which, std::ostream* out) { *out << which.name; }

constexpr const char* kHead =
    "name,model,hidden,inter,experts,topk,ranks,tokens,routing,mask,factor,clamp,alpha,beta,biases,"
    "weight_scales,capacity,poison,cpu_experts,shared_inter,shared_grid\n";
constexpr const char* kUneven =
    "uneven,v4.1-flash,5120,2304,384,6,8,0 1 2 3 5 8 13 40,uniform,0.3,1.5,10.0,1.0,0.0,0,normal,"
    "48,1,0,2304,ue8m0-32x32\n";
constexpr const char* kBiases =
    "gpt-oss,v4-flash,2880,2880,128,4,8,12,first_twice,0.0,1.5,7.0,1.702,1.0,1,normal,12,0,0,2880,"
    "fp32-128x128\n";
constexpr const char* kSpread =
    "scale-spread,v4.1-flash,5120,2304,384,6,8,10,uniform,0.0,1.5,10.0,1.0,0.0,0,"
    "span_per_k128:14;span_per_expert:60,10,0,0,2304,ue8m0-1x32\n";
constexpr const char* kExtremes =
    "scale-extremes,v4.1-flash,5120,2304,384,6,8,10,uniform,0.0,1.5,10.0,1.0,0.0,0,"
    "\"rows_of_codes:1,64,100,127,140,200,241,254\",10,0,0,2304,ue8m0-128x128\n";
constexpr const char* kOneExpert =
    "one-expert,v4-flash,4096,2048,256,6,8,40,only_expert:5,0.0,1.5,10.0,1.0,0.0,0,normal,40,0,0,"
    "2048,ue8m0-128x128\n";
constexpr const char* kIdle =
    "idle,v4-flash,4096,2048,256,6,8,0 0 0 4 0 0 0 0,uniform,1.0,1.5,10.0,1.0,0.0,0,normal,40,0,0,"
    "2048,ue8m0-128x128\n";

std::vector<JudgeCase> cases() {
    constexpr ActivationScale kUe8m0 = ActivationScale::kUe8m0K32;
    return {{"Uneven", kUneven},
            {"UnevenUe8m0", kUneven, kUe8m0},
            {"Biases", kBiases},
            {"BiasesAfter", kBiases, kUe8m0, WeightPlacement::kAfterSecondGemm},
            {"Spread", kSpread},
            {"Extremes", kExtremes},
            {"OneExpert", kOneExpert},
            {"Idle", kIdle}};
}

// A case with the bit-true layer's stages as a right backend's outputs, and both sources.
struct BothJudges {
    Shape shape;
    checkpoint::GeneratedLayer layer;
    std::vector<reference::RankInputs> inputs;
    std::unique_ptr<WeightSource> host_source;
    std::shared_ptr<WeightSource> device_source;
    reference::Problem problem;  // with the host's weights
    std::vector<RankStages> stages;
    std::vector<RankExpected> expected;
    std::vector<RankJudgement> host;
    std::vector<RankJudgement> device;
    std::vector<RankExpected> device_expected;

    explicit BothJudges(const JudgeCase& which, CaseSize size = CaseSize::kReduced) {
        std::vector<SuiteCase> suite;
        EXPECT_TRUE(ok(reference::parse_suite(std::string(kHead) + which.line, &suite)));
        const SuiteCase& suite_case = suite[0];
        shape = reference::case_shape(suite_case, size);
        shape.activation_scale = which.form;
        shape.weight_placement = which.placement;
        EXPECT_TRUE(ok(reference::make_all_inputs(suite_case, size, shape, &inputs)));
        layer = {shape, suite_case.weight_scales, suite_case.biases, suite_case.shared_grid};
        EXPECT_TRUE(ok(checkpoint::open_generated_layer(layer, &host_source)));
        EXPECT_TRUE(ok(cuda::weights::generate_layer(layer, cuda::weights::sizes_of(shape),
                                                     {0, shape.num_experts}, &device_source)));
        problem.name = suite_case.name;
        problem.shape = shape;
        problem.weights = host_source.get();
        problem.inputs = &inputs;
        problem.per_column = suite_case.per_column();
        problem.num_threads = 8;
    }
    void evaluate() {
        EXPECT_TRUE(ok(reference::evaluate_layer(problem, &stages)));
        expected = reference::take_expected(stages);
    }
    void judge(const reference::Tolerance& tolerance) {
        std::vector<RankOutputs> outputs;
        for (const RankStages& stage : stages) outputs.push_back(stage.view(shape));
        EXPECT_TRUE(ok(reference::judge_layer(problem, outputs, expected, tolerance, &host)));
        judge_on_device(outputs, tolerance);
    }
    void judge_on_device(const std::vector<RankOutputs>& outputs,
                         const reference::Tolerance& tolerance) {
        reference::Problem on_device = problem;
        on_device.weights = device_source.get();
        EXPECT_TRUE(ok(reference::judge_layer_on_device(on_device, outputs, tolerance, &device,
                                                        &device_expected)));
    }
};

// The sign of a NaN is the machine's.
std::string without_nan_signs(std::string text) {
    for (std::size_t at = text.find("-nan"); at != std::string::npos; at = text.find("-nan")) {
        text.erase(at, 1);
    }
    return text;
}

void expect_near(double device, double host, const char* what) {
    if (std::isnan(host)) {
        EXPECT_TRUE(std::isnan(device)) << what << " " << device;
    } else if (std::isinf(host)) {
        EXPECT_EQ(device, host) << what;
    } else {
        EXPECT_NEAR(device, host, 1e-9 + 1e-6 * std::abs(host)) << what;
    }
}

void expect_same_verdicts(const BothJudges& both) {
    ASSERT_EQ(both.device.size(), both.host.size());
    for (std::size_t rank = 0; rank < both.host.size(); ++rank) {
        const RankJudgement& host = both.host[rank];
        const RankJudgement& device = both.device[rank];
        EXPECT_EQ(device.ok, host.ok) << rank;
        EXPECT_EQ(without_nan_signs(device.first_failure), without_nan_signs(host.first_failure));
        EXPECT_EQ(device.num_slots, host.num_slots) << rank;
        expect_near(device.worst_stage_error, host.worst_stage_error, "stage error");
        expect_near(device.worst_excess, host.worst_excess, "excess");
        expect_near(device.worst_row_rms, host.worst_row_rms, "row RMS");
        expect_near(device.rel_l2, host.rel_l2, "relative L2");
        expect_near(device.cosine, host.cosine, "cosine");
        expect_near(device.mean_abs, host.mean_abs, "mean");
        expect_near(device.max_abs, host.max_abs, "maximum");
        expect_near(device.plain_rel_l2, host.plain_rel_l2, "relative L2 of plain FP64");
    }
}

class JudgeOnHopper : public testing::Test {
  protected:
    void SetUp() override {
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

class DeviceJudge : public JudgeOnHopper, public testing::WithParamInterface<JudgeCase> {};

TEST_P(DeviceJudge, SameVerdictsAndBitTrueLayerAsTheHost) {
    BothJudges both(GetParam());
    both.evaluate();
    both.judge(reference::kCpuTolerance);
    expect_same_verdicts(both);
    ASSERT_EQ(both.device_expected.size(), both.expected.size());
    for (std::size_t rank = 0; rank < both.expected.size(); ++rank) {
        EXPECT_TRUE(both.host[rank].ok) << both.host[rank].first_failure;
        // The FP64 sums have other orders, so that a value may fall to the other side of a
        // rounding: none did so far.
        EXPECT_EQ(both.device_expected[rank].y, both.expected[rank].y) << "rank " << rank;
        const std::vector<double>& plain = both.expected[rank].plain;
        ASSERT_EQ(both.device_expected[rank].plain.size(), plain.size());
        for (std::size_t i = 0; i < plain.size(); ++i) {
            const double seen = both.device_expected[rank].plain[i];
            ASSERT_NEAR(seen, plain[i], 1e-9 * std::abs(plain[i]) + 1e-12) << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceJudge, testing::ValuesIn(cases()),
                         [](const auto& which) { return std::string(which.param.name); });

// The first live slot of a rank.
reference::Place first_live(const BothJudges& both, int rank) {
    for (const reference::Batch& batch : reference::make_batches(both.shape, both.inputs)) {
        for (const reference::Place& place : batch.rows) {
            if (place.rank == rank && place.slot >= 0) return place;
        }
    }
    return {};
}

TEST_F(JudgeOnHopper, SameSentencesForPlantedErrors) {
    BothJudges both({"", kUneven});
    both.evaluate();
    const std::vector<RankStages> right = both.stages;
    const reference::Place place = first_live(both, 7);
    const auto id = reference::expert_of(both.shape, both.inputs[7], place.token, place.slot);
    RankStages& owner = both.stages[static_cast<std::size_t>(id / both.shape.experts_per_rank())];
    RankStages& own = both.stages[7];
    const std::size_t act = reference::capture_idx(both.shape, owner.max_tokens, place);
    const auto inter = static_cast<std::size_t>(both.shape.inter);
    const auto hidden = static_cast<std::size_t>(both.shape.hidden);
    const std::size_t slot = reference::slot_idx(both.shape, place.token, place.slot);
    constexpr std::uint16_t kInfinity = 0x7F80;
    const std::vector<std::pair<const char*, std::function<void()>>> plants = {
        {"input column 77", [&] { owner.act[act * inter + 77] ^= 2; }},
        {"input column 5", [&] { owner.act[act * inter + 5] = 0x7F; }},
        {"scale", [&] { owner.act_scale[act * inter / 128 + 1] += 4096; }},
        {"scale nan", [&] { owner.act_scale[act * inter / 128] = 0x7FC00000U; }},
        {"output column 130", [&] { own.combine[slot * hidden + 130] ^= 4; }},
        {"output column 3", [&] { own.combine[slot * hidden + 3] = kInfinity; }},
        {"y column 9", [&] { own.y[hidden * 2 + 9] ^= 1; }},
        {"y column 0", [&] { own.y[0] = 0xFFFF; }},
        {"shared expert", [&] { own.shared_row[hidden + 1] ^= 16; }},
        {"shared input", [&] { own.shared_act[7] ^= 64; }},
    };
    for (const auto& [name, plant] : plants) {
        both.stages = right;
        plant();
        both.judge(reference::kCpuTolerance);
        EXPECT_FALSE(both.host[7].ok) << name;
        expect_same_verdicts(both);
    }
    // A tolerance that the row's RMS misses and no element does.
    both.stages = right;
    for (std::size_t h = 0; h < hidden; ++h) own.combine[slot * hidden + h] ^= 1;
    both.judge({10.0, 1e-6});
    EXPECT_NE(both.host[7].first_failure.find("RMS"), std::string::npos);
    expect_same_verdicts(both);
}

TEST_F(JudgeOnHopper, NanInAnInputFailsItsTokenOnBoth) {
    BothJudges both({"", kUneven});
    both.inputs[7].x_scale[3] = 0x7FC00000U;
    both.evaluate();
    both.judge(reference::kHopperTolerance);
    EXPECT_FALSE(both.host[7].ok);
    EXPECT_TRUE(both.host[6].ok) << both.host[6].first_failure;
    expect_same_verdicts(both);
}

// Kernels' outputs, which lie on the host as copies.
TEST_F(JudgeOnHopper, SameVerdictsOnTheKernelsOutputs) {
    test::GpuCase gpu_case;
    gpu_case.shape.hidden = 512;
    gpu_case.shape.inter = 256;
    gpu_case.shape.shared_inter = 384;
    gpu_case.shape.num_experts = 16;
    gpu_case.shape.topk = 4;
    gpu_case.shape.num_ranks = 2;
    gpu_case.num_tokens = 20;
    test::GpuRanks ranks(gpu_case);
    ASSERT_EQ(ranks.run(1), "");
    BothJudges both({"", kIdle});
    both.shape = gpu_case.shape;
    both.problem = ranks.problem();
    const checkpoint::GeneratedLayer layer{gpu_case.shape, "normal", false, gpu_case.shared_grid};
    ASSERT_TRUE(ok(cuda::weights::generate_layer(layer, cuda::weights::sizes_of(layer.shape),
                                                 {0, 16}, &both.device_source)));
    both.evaluate();
    std::vector<RankOutputs> outputs = {ranks.outputs(0), ranks.outputs(1)};
    ASSERT_TRUE(ok(reference::judge_layer(both.problem, outputs, both.expected,
                                          reference::kHopperTolerance, &both.host)));
    both.judge_on_device(outputs, reference::kHopperTolerance);
    expect_same_verdicts(both);
    EXPECT_TRUE(both.device[0].ok) << both.device[0].first_failure;
    EXPECT_GT(both.device[0].worst_excess, 0.0);
}

// Device buffers of zeros, as a backend that did nothing.
std::vector<RankOutputs> blank_outputs(const Shape& shape, int max_tokens,
                                       std::vector<cuda::device::DeviceBuffer>* memory) {
    const auto tokens = static_cast<std::size_t>(max_tokens);
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    const auto inter = static_cast<std::size_t>(shape.inter);
    const std::size_t slots = tokens * static_cast<std::size_t>(shape.topk);
    const std::size_t places = slots * static_cast<std::size_t>(shape.num_ranks);
    const auto blank = [&](std::size_t bytes) {
        memory->emplace_back();
        EXPECT_TRUE(ok(memory->back().allocate(bytes, "blank outputs")));
        EXPECT_EQ(cudaMemset(memory->back().as<void>(), 0, bytes), cudaSuccess);
        return memory->back().as<std::uint8_t>();
    };
    std::vector<RankOutputs> outputs(static_cast<std::size_t>(shape.num_ranks));
    for (RankOutputs& own : outputs) {
        own.max_tokens = max_tokens;
        own.act = blank(places * inter);
        own.act_scale = reinterpret_cast<const std::uint32_t*>(blank(places * inter / 32));
        own.combine = blank(slots * hidden * 2);
        own.combine_stride = hidden * 2;
        own.y = reinterpret_cast<const std::uint16_t*>(blank(tokens * hidden * 2));
        own.y_stride = hidden;
        const auto shared = static_cast<std::size_t>(shape.shared_inter);
        own.shared_act = blank(tokens * shared);
        own.shared_act_scale = reinterpret_cast<const std::uint32_t*>(blank(tokens * shared / 32));
        own.shared_row = reinterpret_cast<const std::uint16_t*>(blank(tokens * hidden * 2));
    }
    return outputs;
}

// Printed, not judged: seconds per full-size case.
TEST_F(JudgeOnHopper, FullSizeFigures) {
    for (const int tokens : {256, 32, 8, 1}) {
        const std::string line =
            "v4.1-flash,v4.1-flash,5120,2304,384,6,8," + std::to_string(tokens) +
            ",uniform,0.0,1.5,10.0,1.0,0.0,0,normal,256,0,0,2304,ue8m0-32x32\n";
        BothJudges both({"", line.c_str()}, CaseSize::kFull);
        std::vector<cuda::device::DeviceBuffer> memory;
        const std::vector<RankOutputs> outputs = blank_outputs(both.shape, 256, &memory);
        const auto begin = std::chrono::steady_clock::now();
        both.judge_on_device(outputs, reference::kHopperTolerance);
        const auto end = std::chrono::steady_clock::now();
        const std::chrono::duration<double> seconds = end - begin;
        std::printf("V4.1-Flash, 8 ranks of %d tokens: judged in %.3f s (%s)\n", tokens,
                    seconds.count(), both.device[0].first_failure.c_str());
        EXPECT_FALSE(both.device[0].ok);
    }
}

}  // namespace
}  // namespace gcmoe
