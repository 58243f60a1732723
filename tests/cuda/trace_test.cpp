// What the GPU's units record: every task and row once in every mode and form, the same bits with
// and without, what does not fit counted.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/gpu_layer.hpp"
#include "cuda/gpu_ranks.hpp"
#include "op/operator_state.hpp"
#include "support/trace_checks.hpp"

namespace gcmoe {
namespace {

using test::GpuLaunchFacts;
using test::GpuLayer;
using test::LayerOptions;

constexpr int kTokens = 96;
constexpr int kEvents = 2048;

class CudaTrace : public testing::Test {
  protected:
    void SetUp() override {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

Shape shape_of(int num_ranks, int shared_inter) {
    Shape shape;
    shape.hidden = 512;
    shape.inter = 256;
    shape.num_experts = 16;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    shape.shared_inter = shared_inter;
    return shape;
}

trace::Trace collect(GpuLayer* layer, int num_ranks) {
    std::vector<Operator*> all;
    for (int rank = 0; rank < num_ranks; ++rank) all.push_back(&layer->op(rank));
    trace::Trace trace;
    const Status status = op::collect_trace(all, &trace);
    EXPECT_TRUE(status.ok()) << status.message();
    return trace;
}

// Every launch has the same inputs.
GpuLaunchFacts facts_of(GpuLayer* layer, int rank, std::uint32_t launch) {
    Operator& op = layer->op(rank);
    const OperatorState& state = op.state();
    const Statistics statistics = op.statistics();
    GpuLaunchFacts facts;
    facts.rank = rank;
    facts.generation = launch;
    facts.plan = state.plans[0].memory;
    facts.blocks = statistics.blocks / statistics.generation;
    facts.rows = statistics.rows / statistics.generation;
    facts.alone = state.shape.num_ranks == 1;
    facts.serial = state.options.launch_mode == LaunchMode::kSerial;
    if (state.shape.shared_inter != 0) {
        const auto tokens = static_cast<std::uint32_t>(layer->tokens(rank));
        facts.shared_blocks = (tokens + facts.plan.row_block - 1) / facts.plan.row_block;
        facts.shared_n1 = static_cast<std::uint32_t>(state.shape.shared_inter) / 128;
    }
    return facts;
}

void expect_traced_launches(const Shape& shape, LayerOptions options,
                            const std::vector<std::uint16_t>& wanted) {
    constexpr std::uint32_t kLaunches = 3;
    options.trace_events = kEvents;
    GpuLayer layer(shape, options);
    for (std::uint32_t launch = 0; launch < kLaunches; ++launch) {
        ASSERT_EQ(layer.run(kTokens), wanted) << "launch " << launch;
    }
    const trace::Trace trace = collect(&layer, shape.num_ranks);
    test::expect_no_overlap(trace);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        for (std::uint32_t launch = 1; launch <= kLaunches; ++launch) {
            test::expect_gpu_launch(trace, facts_of(&layer, rank, launch));
        }
    }
}

TEST_F(CudaTrace, HoldsEveryTaskOnceInEveryModeAndForm) {
    const auto wanted = GpuLayer(shape_of(1, 384), {}).run(kTokens);
    for (const int ranks : {1, 2, 8}) {
        const Shape shape = shape_of(ranks, 384);
        for (const LaunchMode mode :
             {LaunchMode::kGraph, LaunchMode::kEager, LaunchMode::kSerial}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, mode " +
                         std::to_string(static_cast<int>(mode)));
            LayerOptions options;
            options.launch_mode = mode;
            expect_traced_launches(shape, options, wanted);
        }
        for (const CombineUnits who : {CombineUnits::kCompute, CombineUnits::kFollow,
                                       CombineUnits::kDispatch, CombineUnits::kAll}) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, combine " +
                         std::to_string(static_cast<int>(who)));
            LayerOptions options;
            options.combine = who;
            expect_traced_launches(shape, options, wanted);
        }
        LayerOptions role4;
        role4.shared_experts = SharedExperts::kRole4;
        expect_traced_launches(shape, role4, wanted);
        LayerOptions no_overlap;
        no_overlap.overlap = false;
        expect_traced_launches(shape, no_overlap, wanted);
    }
}

// Tasks of role 4 are on tracks of its own. Role 2 starts as late as role 4, with a list of its own
// to go through first.
TEST_F(CudaTrace, Role4HasItsTracks) {
    LayerOptions options;
    options.shared_experts = SharedExperts::kRole4;
    options.overlap = false;
    options.trace_events = kEvents;
    GpuLayer layer(shape_of(1, 1024), options);
    for (int launch = 0; launch < 10; ++launch) layer.run(options.capacity);
    std::uint64_t steps = 0;
    for (const trace::Track& track : collect(&layer, 1).tracks) {
        if (track.roles != trace::UnitRoles::kRole4) continue;
        for (const trace::Event& event : track.events) {
            EXPECT_EQ(event.role, static_cast<std::uint8_t>(Role::kShared));
            if (event.kind == trace::Kind::kSharedFirst) ++steps;
            if (event.kind == trace::Kind::kSharedSecond) ++steps;
        }
    }
    EXPECT_GT(steps, 0U) << "in ten launches role 4 took no task";
}

TEST_F(CudaTrace, SmallLogsCountWhatTheyDropAndChangeNoBit) {
    const auto wanted = GpuLayer(shape_of(2, 0), {}).run(kTokens);
    for (const int events : {1, 3, 17}) {
        LayerOptions options;
        options.trace_events = events;
        GpuLayer layer(shape_of(2, 0), options);
        for (int launch = 0; launch < 3; ++launch) ASSERT_EQ(layer.run(kTokens), wanted);
        const trace::Trace trace = collect(&layer, 2);
        EXPECT_GT(trace.num_dropped(), 0U);
        for (const trace::Track& track : trace.tracks) {
            ASSERT_LE(track.events.size(), static_cast<std::size_t>(events));
        }
        test::expect_no_overlap(trace);
    }
}

// Ranks share the device's clock: nobody uses a row before it was pulled.
TEST_F(CudaTrace, LaunchesFollowEachOtherOnAllRanks) {
    constexpr int kRanks = 4;
    LayerOptions options;
    options.trace_events = kEvents;
    GpuLayer layer(shape_of(kRanks, 0), options);
    for (int launch = 0; launch < 5; ++launch) layer.run(kTokens);
    std::vector<std::uint64_t> begin(6, ~std::uint64_t{0});
    std::vector<std::uint64_t> end(6, 0);
    for (const trace::Track& track : collect(&layer, kRanks).tracks) {
        for (const trace::Event& event : track.events) {
            ASSERT_GE(event.generation, 1U);
            ASSERT_LE(event.generation, 5U);
            begin[event.generation] = std::min(begin[event.generation], event.begin_ns);
            end[event.generation] = std::max(end[event.generation], event.end_ns);
        }
    }
    for (std::size_t launch = 1; launch < 5; ++launch) {
        EXPECT_LE(end[launch], begin[launch + 1]) << "launch " << launch;
        EXPECT_LT(end[launch] - begin[launch], 1'000'000'000U);
    }
}

TEST_F(CudaTrace, AReplayedCaptureRecords) {
    LayerOptions options;
    options.trace_events = kEvents;
    GpuLayer layer(shape_of(2, 0), options);
    const auto wanted = layer.run(kTokens);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    layer.enqueue(stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int replay = 0; replay < 4; ++replay) {
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    EXPECT_EQ(layer.device_rows(), wanted);
    const trace::Trace trace = collect(&layer, 2);
    test::expect_no_overlap(trace);
    for (int rank = 0; rank < 2; ++rank) {
        for (std::uint32_t launch = 1; launch <= 5; ++launch) {
            test::expect_gpu_launch(trace, facts_of(&layer, rank, launch));
        }
    }
}

}  // namespace
}  // namespace gcmoe
