// The CUDA backend behind Operator: green contexts, graphs, streams and serial launches give the
// same bits, on every number of virtual ranks, and every unit runs where it belongs.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "cuda/gpu_layer.hpp"
#include "cuda/gpu_ranks.hpp"
#include "gcmoe/capability.hpp"

namespace gcmoe {
namespace {

using test::GpuLayer;
using test::LayerOptions;

Shape narrow_shape(int num_ranks) {
    Shape shape;
    shape.hidden = 512;
    shape.inter = 256;
    shape.num_experts = 16;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    shape.activation.clamp = 10.0F;
    return shape;
}

class CudaOperator : public testing::Test {
  protected:
    void SetUp() override {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

// The serial launch of one rank is the measure: no kernel of it waits for another.
std::vector<std::uint16_t> serial_rows(int total_tokens) {
    LayerOptions options;
    options.launch_mode = LaunchMode::kSerial;
    GpuLayer layer(narrow_shape(1), options);
    return layer.run(total_tokens);
}

TEST_F(CudaOperator, SameBitsForEveryModeAndNumberOfRanks) {
    constexpr int kTokens = 64;
    const auto wanted = serial_rows(kTokens);
    for (const int ranks : {1, 2, 4, 8}) {
        for (const LaunchMode mode :
             {LaunchMode::kGraph, LaunchMode::kEager, LaunchMode::kSerial}) {
            LayerOptions options;
            options.launch_mode = mode;
            GpuLayer layer(narrow_shape(ranks), options);
            for (int launch = 0; launch < 3; ++launch) {
                ASSERT_EQ(layer.run(kTokens), wanted)
                    << ranks << " ranks, mode " << static_cast<int>(mode) << ", launch " << launch;
            }
            EXPECT_TRUE(layer.placements_hold()) << ranks << " ranks: " << layer.placement_text();
        }
    }
}

TEST_F(CudaOperator, SameBitsForEveryPartitionOfOneRank) {
    constexpr int kTokens = 64;
    const auto wanted = serial_rows(kTokens);
    for (const int dispatch : {4, 8, 16, 20, 32}) {
        LayerOptions options;
        options.dispatch_units = dispatch;
        GpuLayer layer(narrow_shape(1), options);
        ASSERT_EQ(layer.run(kTokens), wanted) << dispatch << " dispatch SMs";
        EXPECT_TRUE(layer.placements_hold()) << layer.placement_text();
    }
}

TEST_F(CudaOperator, SameBitsForEveryShareOfVirtualRanks) {
    constexpr int kTokens = 64;
    const auto wanted = serial_rows(kTokens);
    for (const int ranks : {2, 4, 8}) {
        for (const int dispatch : {2, 4, 6}) {
            LayerOptions options;
            options.dispatch_units = dispatch;
            GpuLayer layer(narrow_shape(ranks), options);
            ASSERT_EQ(layer.run(kTokens), wanted)
                << ranks << " ranks, " << dispatch << " dispatch SMs each";
            EXPECT_TRUE(layer.placements_hold()) << layer.placement_text();
        }
    }
}

TEST_F(CudaOperator, SameBitsForEveryRowBlockAndOverlap) {
    constexpr int kTokens = 96;
    const auto wanted = serial_rows(kTokens);
    for (int row_block = 8; row_block <= 64; row_block += 8) {
        for (const bool overlap : {true, false}) {
            LayerOptions options;
            options.row_block = row_block;
            options.ring_blocks = overlap ? 2 : 0;
            options.overlap = overlap;
            GpuLayer layer(narrow_shape(2), options);
            ASSERT_EQ(layer.run(kTokens), wanted)
                << "row block " << row_block << ", overlap " << overlap;
        }
    }
}

// Role 3 after role 2, behind it SM by SM, on role 1's SMs, in one grid; with and without a shared
// expert, idle ranks.
TEST_F(CudaOperator, SameBitsForEveryCombine) {
    for (const int shared_inter : {0, 384}) {
        Shape shape = narrow_shape(1);
        shape.shared_inter = shared_inter;
        std::vector<std::uint16_t> wanted;
        for (const int ranks : {1, 2, 8}) {
            shape.num_ranks = ranks;
            for (const CombineUnits who : {CombineUnits::kCompute, CombineUnits::kFollow,
                                           CombineUnits::kDispatch, CombineUnits::kAll}) {
                for (const LaunchMode mode : {LaunchMode::kGraph, LaunchMode::kEager}) {
                    LayerOptions options;
                    options.launch_mode = mode;
                    options.combine = who;
                    GpuLayer layer(shape, options);
                    for (int launch = 0; launch < 20; ++launch) {
                        const auto rows = layer.run(100);
                        if (wanted.empty()) wanted = rows;
                        ASSERT_EQ(rows, wanted)
                            << ranks << " ranks, mode " << static_cast<int>(mode) << ", combine "
                            << static_cast<int>(who) << ", launch " << launch;
                        ASSERT_EQ(layer.run(3), layer.run(3));
                    }
                    EXPECT_TRUE(layer.placements_hold()) << layer.placement_text();
                }
            }
        }
    }
}

// By every rule for the SMs, one rank and virtual ones; every unit on an SM of its partition.
TEST_F(CudaOperator, SameBitsForEveryPlacement) {
    std::vector<std::uint16_t> wanted;
    for (const int ranks : {1, 2, 8}) {
        for (const SmPlacement placement :
             {SmPlacement::kBalanced, SmPlacement::kInOrder, SmPlacement::kByGpc}) {
            for (const CombineUnits who : {CombineUnits::kFollow, CombineUnits::kDispatch}) {
                LayerOptions options;
                options.placement = placement;
                options.combine = who;
                GpuLayer layer(narrow_shape(ranks), options);
                for (int launch = 0; launch < 10; ++launch) {
                    const auto rows = layer.run(100);
                    if (wanted.empty()) wanted = rows;
                    ASSERT_EQ(rows, wanted)
                        << ranks << " ranks, placement " << static_cast<int>(placement)
                        << ", combine " << static_cast<int>(who) << ", launch " << launch;
                }
                EXPECT_TRUE(layer.placements_hold()) << layer.placement_text();
            }
        }
    }
}

// A map of its own: the driver's first pair is role 1's.
TEST_F(CudaOperator, InOrderStartsWithTheDriversFirstPair) {
    std::vector<SmPairInfo> pairs;
    const Status found = sm_pairs(0, &pairs);
    ASSERT_TRUE(found.ok()) << found.message();
    LayerOptions options;
    options.placement = SmPlacement::kInOrder;
    options.dispatch_units = 4;
    GpuLayer layer(narrow_shape(1), options);
    layer.run(16);
    std::vector<int> wanted = {pairs[0].first_sm, pairs[0].second_sm, pairs[1].first_sm,
                               pairs[1].second_sm};
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(layer.op(0).statistics().placement.dispatch_ran, wanted);
}

// The shared expert: in role 2's order, as role 4, as a serial launch; over many launches, whose
// shares of the work differ.
TEST_F(CudaOperator, SameBitsForSharedExpertsInOrderAndAsRole4) {
    constexpr int kTokens = 100;
    const auto shape_of = [](int ranks) {
        Shape shape = narrow_shape(ranks);
        shape.shared_inter = 384;
        return shape;
    };
    std::vector<std::uint16_t> wanted;
    for (const int ranks : {1, 2, 8}) {
        for (const SharedExperts who : {SharedExperts::kInOrder, SharedExperts::kRole4}) {
            for (const LaunchMode mode :
                 {LaunchMode::kSerial, LaunchMode::kGraph, LaunchMode::kEager}) {
                LayerOptions options;
                options.launch_mode = mode;
                options.shared_experts = who;
                GpuLayer layer(shape_of(ranks), options);
                for (int launch = 0; launch < 10; ++launch) {
                    const auto rows = layer.run(kTokens);
                    if (wanted.empty()) wanted = rows;
                    ASSERT_EQ(rows, wanted)
                        << ranks << " ranks, mode " << static_cast<int>(mode) << ", role 4 "
                        << (who == SharedExperts::kRole4) << ", launch " << launch;
                    ASSERT_EQ(layer.run(3), layer.run(3));
                }
                EXPECT_TRUE(layer.placements_hold()) << layer.placement_text();
            }
        }
    }
}

// A token's bits do not depend on what else is in the batch.
TEST_F(CudaOperator, BatchInvariant) {
    constexpr int kTokens = 256;
    GpuLayer layer(narrow_shape(1), {});
    const auto all = layer.run(kTokens);
    const std::size_t hidden = 512;
    for (const int token : {0, 1, 77, 255}) {
        const auto alone = layer.run_tokens(token, 1);
        const std::vector<std::uint16_t> row(all.begin() + token * hidden,
                                             all.begin() + (token + 1) * hidden);
        ASSERT_EQ(alone, row) << "token " << token;
    }
}

// Launches that alternate between numbers of tokens, plans and outputs use the graphs of each.
TEST_F(CudaOperator, ChangingTokensAndIdleRanks) {
    GpuLayer layer(narrow_shape(4), {});
    LayerOptions serial_options;
    serial_options.launch_mode = LaunchMode::kSerial;
    GpuLayer serial(narrow_shape(4), serial_options);
    for (const int tokens : {64, 1, 0, 33, 2, 64, 3}) {
        ASSERT_EQ(layer.run(tokens), serial.run(tokens)) << tokens << " tokens over 4 ranks";
    }
}

// A caller's capture gets the roles as nodes, in every capture mode (PyTorch's is the global one);
// replays follow what stands in the inputs.
class CudaCapture : public CudaOperator,
                    public testing::WithParamInterface<cudaStreamCaptureMode> {};

TEST_P(CudaCapture, RolesBecomeNodes) {
    constexpr int kTokens = 16;
    GpuLayer layer(narrow_shape(2), {});
    const auto wanted = layer.run(kTokens);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, GetParam()), cudaSuccess);
    layer.enqueue(stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int replay = 0; replay < 5; ++replay) {
        layer.clear_outputs();
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        ASSERT_EQ(layer.device_rows(), wanted) << "replay " << replay;
    }
    cudaGraphExecDestroy(exec);
    // As a child of a larger graph.
    cudaGraph_t parent = nullptr;
    cudaGraphNode_t first = nullptr;
    cudaGraphNode_t second = nullptr;
    ASSERT_EQ(cudaGraphCreate(&parent, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphAddChildGraphNode(&first, parent, nullptr, 0, graph), cudaSuccess);
    ASSERT_EQ(cudaGraphAddChildGraphNode(&second, parent, &first, 1, graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, parent, 0), cudaSuccess);
    layer.clear_outputs();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(layer.device_rows(), wanted);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(parent);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaCapture,
                         testing::Values(cudaStreamCaptureModeGlobal,
                                         cudaStreamCaptureModeThreadLocal,
                                         cudaStreamCaptureModeRelaxed));

// Replays with changing tokens, idle ranks and poison over everything that a launch must write
// before it reads; each output is that of the serial run of the same inputs.
// GCMOE_SOAK_REPLAYS: how many (500).
TEST_F(CudaOperator, Soak) {
    const char* text = std::getenv("GCMOE_SOAK_REPLAYS");
    const int replays = text == nullptr ? 500 : std::atoi(text);
    constexpr int kSets = 64;
    const Shape shape = narrow_shape(8);
    LayerOptions options;
    options.ring_blocks = 2;  // many laps
    options.row_block = 8;
    options.capacity = 32;
    LayerOptions serial_options = options;
    serial_options.ring_blocks = 0;
    serial_options.launch_mode = LaunchMode::kSerial;
    GpuLayer serial(shape, serial_options);
    std::vector<std::vector<int>> tokens;
    std::vector<std::vector<std::uint16_t>> wanted;
    std::mt19937_64 random(7);
    for (int set = 0; set < kSets; ++set) {
        tokens.emplace_back();
        for (int rank = 0; rank < 8; ++rank) {
            const int idle = static_cast<int>(random() % 4);
            tokens.back().push_back(idle == 0 ? 0 : static_cast<int>(random() % 33));
        }
        wanted.push_back(serial.run_counts(tokens.back(), set));
    }
    GpuLayer layer(shape, options);
    for (int replay = 0; replay < replays; ++replay) {
        const auto set = static_cast<std::size_t>(random() % kSets);
        if (replay % 16 == 0) layer.poison();
        ASSERT_EQ(layer.run_counts(tokens[set], static_cast<int>(set)), wanted[set])
            << "replay " << replay << ", set " << set;
    }
    std::printf("soak: %d replays over %d sets of inputs, 8 ranks, %llu laps of rank 0's ring\n",
                replays, kSets, static_cast<unsigned long long>(layer.op(0).statistics().laps));
}

// The capacity of the buffers is no part of the result.
TEST_F(CudaOperator, SameBitsAtAnyCapacity) {
    LayerOptions options;
    options.capacity = 8;
    GpuLayer tight(narrow_shape(1), options);
    const auto wanted = tight.run(8);
    options.capacity = 200000;
    options.poison = false;
    GpuLayer wide(narrow_shape(1), options);
    EXPECT_EQ(wide.run_rows(8), wanted);
}

TEST_F(CudaOperator, SameBitsAtAnyCapacityOfV41Flash) {
    Shape shape = narrow_shape(1);
    shape.hidden = 5120;
    shape.inter = 2304;
    shape.num_experts = 48;
    shape.topk = 6;
    LayerOptions options;
    options.capacity = 8;
    const auto wanted = GpuLayer(shape, options).run(8);
    options.capacity = 200000;  // 12 GB of combine rows
    options.poison = false;
    EXPECT_EQ(GpuLayer(shape, options).run_rows(8), wanted);
}

// A rank that synchronises before the others have launched does not block them.
TEST_F(CudaOperator, RanksThatLaunchOneByOne) {
    GpuLayer layer(narrow_shape(2), {});
    const auto wanted = layer.run(16);
    ASSERT_EQ(layer.run_from_threads(16), wanted);
    ASSERT_EQ(layer.run(16), wanted);
}

// A rank that never launches: the others give up at their deadline and name it.
TEST_F(CudaOperator, AbsentRankIsNamed) {
    LayerOptions options;
    options.deadline_s = 0.5;
    GpuLayer layer(narrow_shape(2), options);
    const Status status = layer.launch_one(0, 16);
    EXPECT_EQ(status.code(), Code::kStalled) << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    ASSERT_TRUE(layer.reset(false).ok());
    EXPECT_EQ(layer.run(16), serial_rows(16));
}

// Graphs made before a reset that moved the memory are not used again.
TEST_F(CudaOperator, ResetThatMovesTheMemory) {
    GpuLayer layer(narrow_shape(2), {});
    const auto wanted = layer.run(16);
    ASSERT_EQ(layer.run(16), wanted);
    ASSERT_TRUE(layer.reset(true).ok());
    ASSERT_EQ(layer.run(16), wanted);
    ASSERT_EQ(layer.run(16), wanted);
}

TEST_F(CudaOperator, SerialLaunchesSumInAKernelOfTheirOwn) {
    OperatorOptions options;
    options.backend = "cuda";
    options.max_tokens = 8;
    options.launch_mode = LaunchMode::kSerial;
    options.plans.resize(1);
    for (const CombineUnits units :
         {CombineUnits::kFollow, CombineUnits::kDispatch, CombineUnits::kAll}) {
        options.plans[0].combine = units;
        std::vector<SizeEntry> sizes;
        const Status status = Operator::size_report(narrow_shape(1), options, &sizes);
        EXPECT_EQ(status.code(), Code::kBadConfig);
        EXPECT_NE(status.message().find("launch_mode is serial"), std::string::npos)
            << status.message();
    }
}

TEST_F(CudaOperator, SerialLaunchesHaveNoPartitionsToPlace) {
    OperatorOptions options;
    options.backend = "cuda";
    options.max_tokens = 8;
    options.launch_mode = LaunchMode::kSerial;
    options.plans.resize(1);
    options.plans[0].placement = SmPlacement::kInOrder;
    std::vector<SizeEntry> sizes;
    const Status status = Operator::size_report(narrow_shape(1), options, &sizes);
    EXPECT_EQ(status.code(), Code::kBadConfig);
    EXPECT_NE(status.message().find("placement must be balanced"), std::string::npos)
        << status.message();
}

TEST_F(CudaOperator, BadOutputsAndCallbacksAreRefused) {
    GpuLayer layer(narrow_shape(1), {});
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
    LaunchArgs args;
    args.num_tokens = 4;
    args.y = static_cast<std::uint16_t*>(memory) + 1;
    Status status = layer.op(0).launch(args);
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_NE(status.message().find("16-byte"), std::string::npos) << status.message();
    args.y = static_cast<std::uint16_t*>(memory);
    args.before = [] { return 4; };
    status = layer.op(0).launch(args);
    EXPECT_EQ(status.code(), Code::kUnsupported) << status.message();
    cudaFree(memory);
}

}  // namespace
}  // namespace gcmoe
