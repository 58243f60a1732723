// The roles' own sources, executed on the host.
//
// Signals, dispatch buffers and statistics: equal byte for byte to the CPU backend's.
// The second GEMM's inputs, the shared expert's, and y: equal byte for byte to a scalar layer with
// role 2's order of sums (scalar_layer.hpp). The stand-in's wgmma is exact and its exp() is libm's,
// as the scalar layer's is; so what differs is arithmetic that a role does otherwise than it says.
// Beside the CPU backend, which adds in 16 lanes, rounds products and has its own exp(): the same
// bytes with UE8M0 scales as long as no sum rounds and no exp() decides a code; with FP32 scales
// scales within 2e-6, codes and y a step apart at most and few.
// At last every stage is judged against the reference layer, with the CPU's tolerance: the
// stand-in's sums are not Hopper's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

#include "host_stub/host_roles.hpp"
#include "host_stub/scalar_layer.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "op/operator_state.hpp"
#include "reference/judge.hpp"
#include "support/rank_outputs.hpp"

namespace gcmoe::host_stub {
namespace {

struct HostCase {
    const char* name;
    Shape shape;
    int total_tokens;
    int row_block;
    int ring_blocks;
    test::WeightForms forms;
};

void PrintTo(const HostCase& which, std::ostream* out) { *out << which.name; }

Shape shape_of(int num_ranks, ActivationScale scale, int shared_inter) {
    Shape shape = test::small_shape(num_ranks, shared_inter);
    shape.num_experts = 4;
    shape.topk = 2;
    shape.activation_scale = scale;
    return shape;
}

Shape with_bias(Shape shape, WeightPlacement placement) {
    shape.has_bias = true;
    shape.weight_placement = placement;
    return shape;
}

// Odd numbers of chunks, and a last second-GEMM task that leaves two warpgroups without a tile.
Shape with_odd_chunks(Shape shape) {
    shape.hidden = shape.inter = 384;
    return shape;
}

// Narrower than a second-GEMM task.
Shape with_hidden_128(Shape shape) {
    shape.hidden = 128;
    return shape;
}

// Blocks of 8 to 64 rows of all sizes that have a loop of their own.
std::vector<HostCase> cases() {
    constexpr ActivationScale kFp32 = ActivationScale::kFp32K128;
    constexpr ActivationScale kUe8m0 = ActivationScale::kUe8m0K32;
    constexpr WeightPlacement kBefore = WeightPlacement::kBeforeRequantise;
    constexpr WeightPlacement kAfter = WeightPlacement::kAfterSecondGemm;
    const test::WeightForms shared_k32{"normal", ScaleGrid::kUe8m0Block32};
    const test::WeightForms chunk_factors{"span_per_k128:1;span_per_expert:40"};
    return {
        {"K128Rows8", shape_of(1, kFp32, 0), 12, 8, 2, {}},
        {"K128Rows8Hidden128", with_hidden_128(shape_of(1, kFp32, 128)), 20, 8, 2, {}},
        {"K128Rows16TwoRanks", shape_of(2, kFp32, 0), 30, 16, 1, {}},
        {"K128Rows16SharedK32", shape_of(1, kFp32, 128), 20, 16, 2, shared_k32},
        {"K128Rows16ChunkFactors", shape_of(1, kFp32, 0), 20, 16, 2, chunk_factors},
        {"K128Rows24Bias", with_bias(shape_of(1, kFp32, 0), kBefore), 40, 24, 2, {}},
        {"K128Rows32WeightAfter", with_bias(shape_of(1, kFp32, 0), kAfter), 40, 32, 2, {}},
        {"K128Rows32Odd", with_odd_chunks(shape_of(1, kFp32, 256)), 50, 32, 2, {}},
        {"K128Rows32ChunkFactors", shape_of(1, kFp32, 0), 50, 32, 2, chunk_factors},
        {"K128Rows40", shape_of(1, kFp32, 0), 90, 40, 2, {}},
        {"K128Rows48", shape_of(1, kFp32, 0), 100, 48, 2, {}},
        {"K128Rows56Odd", with_odd_chunks(shape_of(1, kFp32, 0)), 130, 56, 2, {}},
        {"K128Rows64Shared", shape_of(1, kFp32, 128), 150, 64, 2, {}},
        {"K128Rows64SharedK32", shape_of(1, kFp32, 128), 60, 64, 2, shared_k32},
        {"K128Rows64ChunkFactors", shape_of(1, kFp32, 0), 60, 64, 2, chunk_factors},
        {"K32Rows16Shared", shape_of(2, kUe8m0, 128), 20, 16, 2, {}},
        {"K32Rows32", shape_of(1, kUe8m0, 0), 40, 32, 2, {}},
        {"K32Rows32OddSharedK32", with_odd_chunks(shape_of(1, kUe8m0, 128)), 40, 32, 2, shared_k32},
        {"K32Rows64", shape_of(1, kUe8m0, 0), 150, 64, 2, {}},
    };
}

// The CPU backend multiplies a chunk's sum by the factor, role 2 each K32's.
bool is_cpu_order(const HostCase& which) {
    return which.shape.activation_scale == ActivationScale::kFp32K128 ||
           which.forms.routed == "normal";
}

// Not compared with the CPU backend.
std::vector<HostCase> cases_of_another_order() {
    const test::WeightForms chunk_factors{"span_per_k128:1;span_per_expert:40"};
    const ActivationScale scale = ActivationScale::kUe8m0K32;
    return {{"K32Rows16ChunkFactors", shape_of(1, scale, 0), 20, 16, 2, chunk_factors},
            {"K32Rows64ChunkFactors", shape_of(1, scale, 0), 60, 64, 2, chunk_factors}};
}

OperatorOptions options_of(const HostCase& which) {
    OperatorOptions options;
    options.max_tokens = which.total_tokens;
    options.poison = true;
    options.capture = true;
    options.plans.resize(1);
    options.plans[0].row_block = which.row_block;
    options.plans[0].ring_blocks = which.ring_blocks;
    options.plans[0].second_columns = 256;  // four row tiles a task, as the kernel has them
    return options;
}

// What role 1 leaves behind, in both layers.
void expect_same_dispatch(const OperatorState& host, const OperatorState& cpu) {
    const layout::PlanMemory& plan = host.plans[0].memory;
    const std::size_t ring_rows = std::size_t{plan.ring_blocks} * plan.row_block;
    const auto hidden = static_cast<std::size_t>(host.shape.hidden);
    const auto& heap = host.heap;
    const auto& local = host.local;
    const auto same_heap = [&](std::uint64_t offset, std::size_t bytes) {
        return std::memcmp(host.backend->heap_base() + offset, cpu.backend->heap_base() + offset,
                           bytes) == 0;
    };
    const auto same_local = [&](std::uint64_t offset, std::size_t bytes) {
        return std::memcmp(host.backend->host_view().local + offset,
                           cpu.backend->host_view().local + offset, bytes) == 0;
    };
    EXPECT_TRUE(same_heap(heap.recv_count, 16ULL * heap.num_ranks * heap.experts_per_rank));
    EXPECT_TRUE(same_heap(heap.recv_slot, 8ULL * heap.num_ranks * heap.max_slots()));
    EXPECT_TRUE(same_heap(heap.done, 8ULL * heap.num_ranks));
    EXPECT_TRUE(same_local(local.ring_x, ring_rows * hidden));
    EXPECT_TRUE(same_local(local.ring_x_scale, ring_rows * hidden / 32));
    EXPECT_TRUE(same_local(local.ring_origin, ring_rows * sizeof(layout::Origin)));
    EXPECT_TRUE(same_local(local.statistics, 8ULL * heap.experts_per_rank));
    EXPECT_TRUE(same_local(plan.l1_full_count, 4ULL * plan.ring_blocks));
    EXPECT_TRUE(same_local(plan.l2_full_mask, 8ULL * plan.ring_blocks));
}

void expect_same_activations(const OperatorState& host, const OperatorState& cpu) {
    const std::uint64_t slots = host.heap.num_ranks * host.heap.max_slots();
    const auto inter = static_cast<std::uint64_t>(host.shape.inter);
    const auto same = [&](std::uint64_t offset, std::uint64_t bytes) {
        return std::memcmp(host.backend->host_view().local + offset,
                           cpu.backend->host_view().local + offset, bytes) == 0;
    };
    EXPECT_TRUE(same(host.local.capture_act, slots * inter));
    EXPECT_TRUE(same(host.local.capture_act_scale, slots * inter / 32));
}

// What a scalar layer says of a rank, unused slots and tokens included.
void expect_scalar_stages(const OperatorState& host, const reference::RankStages& want) {
    const auto same = [&](std::uint64_t offset, const void* bytes, std::size_t num_bytes) {
        return std::memcmp(host.backend->host_view().local + offset, bytes, num_bytes) == 0;
    };
    const auto& local = host.local;
    EXPECT_TRUE(same(local.capture_act, want.act.data(), want.act.size()));
    EXPECT_TRUE(same(local.capture_act_scale, want.act_scale.data(), 4 * want.act_scale.size()));
    if (host.shape.shared_inter == 0) return;
    EXPECT_TRUE(same(local.shared_act, want.shared_act.data(), want.shared_act.size()));
    EXPECT_TRUE(same(local.shared_act_scale, want.shared_act_scale.data(),
                     4 * want.shared_act_scale.size()));
    EXPECT_TRUE(same(local.shared_row, want.shared_row.data(), 2 * want.shared_row.size()));
}

// FP32 scales: 2e-6 of each other; codes: one step apart, in one of 1000 that are used at most.
void expect_close_activations(const OperatorState& host, const OperatorState& cpu) {
    constexpr std::uint32_t kPoison = 0xFFFFFFFF;
    const std::uint64_t chunks = host.heap.num_ranks * host.heap.max_slots() *
                                 static_cast<std::uint64_t>(host.shape.inter / 128);
    const std::uint8_t* codes = host.backend->host_view().local + host.local.capture_act;
    const std::uint8_t* cpu_codes = cpu.backend->host_view().local + cpu.local.capture_act;
    const auto* scales = reinterpret_cast<const std::uint32_t*>(host.backend->host_view().local +
                                                                host.local.capture_act_scale);
    const auto* cpu_scales = reinterpret_cast<const std::uint32_t*>(cpu.backend->host_view().local +
                                                                    cpu.local.capture_act_scale);
    std::uint64_t num_used = 0;
    std::uint64_t num_off = 0;
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        ASSERT_EQ(scales[chunk] == kPoison, cpu_scales[chunk] == kPoison) << "chunk " << chunk;
        if (scales[chunk] == kPoison) continue;
        const float scale = numerics::bits_to_float(scales[chunk]);
        const float cpu_scale = numerics::bits_to_float(cpu_scales[chunk]);
        ASSERT_LE(std::abs(scale - cpu_scale), 2e-6F * cpu_scale) << "chunk " << chunk;
        num_used += 128;
        for (std::uint64_t i = 128 * chunk; i < 128 * chunk + 128; ++i) {
            const int steps = std::abs(int{codes[i]} - int{cpu_codes[i]});
            ASSERT_LE(steps, 1) << "code " << i << ": " << int{codes[i]};
            num_off += static_cast<std::uint64_t>(steps);
        }
    }
    EXPECT_GT(num_used, 0);
    EXPECT_LE(num_off * 1000, num_used);
}

// Elements: neighbours in BF16, or 2^-8 of the row's largest apart; differing ones: one of 1000 at
// most; all together: a relative L2 of 2e-4.
void expect_close_outputs(const std::vector<std::uint16_t>& host,
                          const std::vector<std::uint16_t>& cpu, std::size_t hidden) {
    ASSERT_EQ(host.size(), cpu.size());
    double error = 0;
    double size = 0;
    std::size_t num_off = 0;
    for (std::size_t row = 0; row < cpu.size(); row += hidden) {
        double largest = 0;
        for (std::size_t i = row; i < row + hidden; ++i) {
            largest = std::max(largest, std::abs(double{numerics::bf16_to_float(cpu[i])}));
        }
        for (std::size_t i = row; i < row + hidden; ++i) {
            const double want = double{numerics::bf16_to_float(cpu[i])};
            const double off = double{numerics::bf16_to_float(host[i])} - want;
            const bool next = std::abs(int{host[i]} - int{cpu[i]}) == 1;
            ASSERT_TRUE(next || std::abs(off) <= largest / 256)
                << "element " << i << ": " << want << " + " << off << ", row's largest " << largest;
            num_off += off != 0 ? 1 : 0;
            error += off * off;
            size += want * want;
        }
    }
    EXPECT_LE(num_off * 1000, cpu.size());
    EXPECT_LE(std::sqrt(error / size), 2e-4);
}

// UE8M0 scales: the same bytes.
void expect_cpu_values(const OperatorState& host, const OperatorState& cpu,
                       const std::vector<std::uint16_t>& y,
                       const std::vector<std::uint16_t>& cpu_y) {
    if (host.shape.activation_scale == ActivationScale::kUe8m0K32) {
        expect_same_activations(host, cpu);
        EXPECT_TRUE(y == cpu_y);
        return;
    }
    expect_close_activations(host, cpu);
    expect_close_outputs(y, cpu_y, static_cast<std::size_t>(host.shape.hidden));
}

class HostRoles : public testing::TestWithParam<HostCase> {
  protected:
    // One launch on both; y of the CPU backend.
    std::vector<std::vector<std::uint16_t>> launch() {
        EXPECT_EQ(ranks_.run(), "");
        auto y = on_cpu_.run(inputs_);
        for (int rank = 0; rank < which_.shape.num_ranks; ++rank) {
            SCOPED_TRACE(rank);
            expect_same_dispatch(on_host_.op(rank).state(), on_cpu_.op(rank).state());
        }
        return y;
    }
    std::vector<reference::RankOutputs> outputs() {
        std::vector<reference::RankOutputs> all;
        for (int rank = 0; rank < which_.shape.num_ranks; ++rank) {
            all.push_back(
                test::rank_outputs(&on_host_.op(rank), which_.total_tokens, ranks_.y(rank).data()));
        }
        return all;
    }

    const HostCase which_ = GetParam();
    test::VirtualLayer on_cpu_{which_.shape, {}, options_of(which_), which_.forms};
    test::VirtualLayer on_host_{which_.shape, {}, options_of(which_), which_.forms};
    const std::vector<reference::RankInputs> inputs_ =
        test::spread_inputs(which_.shape, 3, which_.total_tokens, which_.total_tokens, 0.1);
    HostRanks ranks_{&on_host_, inputs_};
};

TEST_P(HostRoles, SameBytesAsTheScalarLayer) {
    const auto want =
        scalar_layer(which_.shape, test::packed_layer(which_.shape, which_.forms), inputs_);
    for (int n = 0; n < 2; ++n) {
        const auto cpu_y = launch();
        for (int rank = 0; rank < which_.shape.num_ranks; ++rank) {
            SCOPED_TRACE(rank);
            const auto at = static_cast<std::size_t>(rank);
            const OperatorState& host = on_host_.op(rank).state();
            expect_scalar_stages(host, want[at]);
            EXPECT_TRUE(ranks_.y(rank) == want[at].y);
            if (is_cpu_order(which_)) {
                expect_cpu_values(host, on_cpu_.op(rank).state(), ranks_.y(rank), cpu_y[at]);
            }
        }
    }
}

// Role 3 beside roles 1 and 2, and all roles in one kernel; two launches.
TEST_P(HostRoles, EveryFormOfRole3GivesTheSameBytes) {
    launch();
    for (const auto form : {layout::CombineOn::kFollow, layout::CombineOn::kAll}) {
        SCOPED_TRACE(static_cast<int>(form));
        test::VirtualLayer layer{which_.shape, {}, options_of(which_), which_.forms};
        HostRanks ranks{&layer, inputs_, form};
        for (int n = 0; n < 2; ++n) {
            ASSERT_EQ(ranks.run(), "");
            for (int rank = 0; rank < which_.shape.num_ranks; ++rank) {
                EXPECT_TRUE(ranks.y(rank) == ranks_.y(rank)) << "rank " << rank << ", launch " << n;
            }
        }
    }
}

class JudgedRoles : public HostRoles {};

TEST_P(JudgedRoles, AgreeWithTheReferenceAtEveryStage) {
    launch();
    const auto weights = test::generated_weights(which_.shape, which_.forms);
    reference::Problem problem;
    problem.name = which_.name;
    problem.shape = which_.shape;
    problem.weights = weights.get();
    problem.inputs = &inputs_;
    std::vector<reference::RankStages> stages;
    ASSERT_TRUE(reference::evaluate_layer(problem, &stages).ok());
    std::vector<reference::RankJudgement> verdicts;
    const Status status =
        reference::judge_layer(problem, outputs(), reference::take_expected(std::move(stages)),
                               reference::kCpuTolerance, &verdicts);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const reference::RankJudgement& verdict : verdicts) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
        EXPECT_GT(verdict.num_slots, 0);
    }
}

std::string name_of(const testing::TestParamInfo<HostCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Stub, HostRoles, testing::ValuesIn(cases()), name_of);
INSTANTIATE_TEST_SUITE_P(StubOtherOrder, HostRoles, testing::ValuesIn(cases_of_another_order()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Stub, JudgedRoles, testing::ValuesIn(cases()), name_of);
INSTANTIATE_TEST_SUITE_P(StubOtherOrder, JudgedRoles, testing::ValuesIn(cases_of_another_order()),
                         name_of);

}  // namespace
}  // namespace gcmoe::host_stub
