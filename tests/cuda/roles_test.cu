// The roles as kernels on one GPU: virtual ranks, every rounding judged, dispatch buffers and
// signals equal to the CPU backend's byte for byte. The roles run in the primary context here, not
// on green contexts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <ostream>

#include "cuda/gpu_ranks.hpp"
#include "op/operator_state.hpp"
#include "reference/judge.hpp"

namespace gcmoe {
namespace {

using test::GpuCase;
using test::GpuRanks;

struct NamedCase {
    const char* name;
    GpuCase gpu_case;
};

void PrintTo(const NamedCase& which, std::ostream* out) { *out << which.name; }

Shape small_shape(int num_ranks) {
    Shape shape;
    shape.hidden = 512;
    shape.inter = 256;
    shape.num_experts = 16;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    shape.activation.clamp = 10.0F;
    return shape;
}

GpuCase small_case(int num_ranks, int num_tokens, int row_block, int ring_blocks) {
    GpuCase gpu_case;
    gpu_case.shape = small_shape(num_ranks);
    gpu_case.num_tokens = num_tokens;
    gpu_case.row_block = row_block;
    gpu_case.ring_blocks = ring_blocks;
    return gpu_case;
}

GpuCase shared_case(ScaleGrid grid, ActivationScale activation_scale) {
    GpuCase gpu_case = small_case(2, 20, 16, 4);
    gpu_case.shape.shared_inter = 384;
    gpu_case.shape.activation_scale = activation_scale;
    gpu_case.shared_grid = grid;
    return gpu_case;
}

GpuCase bias_case() {
    GpuCase gpu_case = small_case(2, 20, 16, 4);
    gpu_case.shape.has_bias = true;
    gpu_case.shape.activation = {7.0F, 1.702F, 1.0F};
    return gpu_case;
}

GpuCase after_case() {
    GpuCase gpu_case = small_case(2, 20, 24, 4);
    gpu_case.shape.weight_placement = WeightPlacement::kAfterSecondGemm;
    return gpu_case;
}

GpuCase chunk_form_case() {
    GpuCase gpu_case = small_case(2, 20, 16, 4);
    gpu_case.weight_scales = "span_per_k128:14;span_per_expert:60";
    gpu_case.per_column = true;
    gpu_case.shape.activation.clamp = std::numeric_limits<float>::infinity();
    return gpu_case;
}

// The clamp leaves 10 of sums that are thousands.
GpuCase clamped_chunk_form_case() {
    GpuCase gpu_case = chunk_form_case();
    gpu_case.shape.activation.clamp = 10.0F;
    return gpu_case;
}

GpuCase wide_case(int num_ranks, int hidden, int inter, int experts, int topk) {
    GpuCase gpu_case = small_case(num_ranks, 8, 16, 8);
    gpu_case.shape.hidden = hidden;
    gpu_case.shape.inter = inter;
    gpu_case.shape.num_experts = experts;
    gpu_case.shape.topk = topk;
    return gpu_case;
}

std::vector<NamedCase> cases() {
    constexpr ActivationScale kFp32 = ActivationScale::kFp32K128;
    constexpr ActivationScale kUe8m0 = ActivationScale::kUe8m0K32;
    return {{"OneRank", small_case(1, 8, 8, 4)},
            {"OneRankLaps", small_case(1, 40, 16, 2)},
            {"OnePlaceRing", small_case(1, 40, 8, 1)},
            {"Rows32", small_case(1, 100, 32, 4)},
            {"Rows64", small_case(1, 200, 64, 2)},
            {"Rows40", small_case(1, 200, 40, 2)},
            {"TwoRanks", small_case(2, 16, 16, 2)},
            {"FourRanks", small_case(4, 16, 16, 2)},
            {"EightRanks", small_case(8, 16, 16, 2)},
            {"SharedBlock128", shared_case(ScaleGrid::kUe8m0Block128, kFp32)},
            {"SharedFp32Block128", shared_case(ScaleGrid::kFp32Block128, kFp32)},
            {"SharedBlock32", shared_case(ScaleGrid::kUe8m0Block32, kFp32)},
            {"SharedRow32K32", shared_case(ScaleGrid::kUe8m0Row32, kUe8m0)},
            {"Bias", bias_case()},
            {"WeightAfter", after_case()},
            {"ChunkForm", chunk_form_case()},
            {"ChunkFormClamped", clamped_chunk_form_case()},
            {"Wide2944", wide_case(2, 2944, 2944, 8, 4)},
            {"Experts896Topk16", wide_case(2, 256, 128, 896, 16)},
            {"Experts7OfARankTopk1", wide_case(3, 256, 384, 21, 1)},
            {"V41FlashTwoExpertsARank", wide_case(8, 5120, 2304, 16, 6)}};
}

class OnHopper : public testing::Test {
  protected:
    void SetUp() override {
        std::string seen;
        if (!test::has_hopper(&seen)) GTEST_SKIP() << "needs an sm_90 GPU: " << seen;
    }
};

class Roles : public OnHopper, public testing::WithParamInterface<NamedCase> {};

// Bytes of the two regions are equal; says where they differ.
void expect_equal(const char* region, const std::uint8_t* gpu, const std::uint8_t* cpu,
                  std::size_t bytes) {
    if (std::memcmp(gpu, cpu, bytes) == 0) return;
    std::size_t i = 0;
    while (gpu[i] == cpu[i]) ++i;
    ADD_FAILURE() << region << " differs from the CPU backend's at byte " << i << " of " << bytes;
}

void expect_same_signals(GpuRanks* ranks, int rank) {
    const OperatorState& state = ranks->cpu(rank).state();
    const test::GpuRank& gpu = ranks->ranks()[static_cast<std::size_t>(rank)];
    const auto& heap = state.heap;
    const auto& local = state.local;
    const layout::PlanMemory& plan = state.plans[0].memory;
    const std::size_t ring_rows = std::size_t{plan.ring_blocks} * plan.row_block;
    const auto hidden = static_cast<std::size_t>(state.shape.hidden);
    const auto in_heap = [&](const char* name, std::uint64_t offset, std::size_t bytes) {
        expect_equal(name, gpu.heap_copy.data() + offset, state.backend->heap_base() + offset,
                     bytes);
    };
    const auto in_local = [&](const char* name, std::uint64_t offset, std::size_t bytes) {
        expect_equal(name, gpu.local_copy.data() + offset,
                     state.backend->host_view().local + offset, bytes);
    };
    in_heap("recv_count", heap.recv_count, 16ULL * heap.num_ranks * heap.experts_per_rank);
    in_heap("recv_slot", heap.recv_slot, 8ULL * heap.num_ranks * heap.max_slots());
    in_heap("done", heap.done, 8ULL * heap.num_ranks);
    in_local("ring_x", local.ring_x, ring_rows * hidden);
    in_local("ring_x_scale", local.ring_x_scale, ring_rows * hidden / 32);
    in_local("ring_origin", local.ring_origin, ring_rows * sizeof(layout::Origin));
    in_local("act_origin", local.act_origin, ring_rows * sizeof(layout::Origin));
    in_local("rows_left", local.rows_left, 4ULL * heap.num_ranks);
    in_local("statistics", local.statistics, 8ULL * heap.experts_per_rank);
    in_local("l1_full_count", plan.l1_full_count, 4ULL * plan.ring_blocks);
    in_local("l1_empty_count", plan.l1_empty_count, 4ULL * plan.ring_blocks);
    in_local("l2_full_mask", plan.l2_full_mask, 8ULL * plan.ring_blocks);
    in_local("l2_empty_count", plan.l2_empty_count, 4ULL * plan.ring_blocks);
}

TEST_P(Roles, JudgedAndEqualToTheCpusBuffers) {
    constexpr int kLaunches = 3;
    GpuRanks ranks(GetParam().gpu_case);
    ASSERT_EQ(ranks.run(kLaunches), "");
    ranks.run_on_cpu(kLaunches);
    reference::Problem problem = ranks.problem();
    std::vector<reference::RankStages> stages;
    ASSERT_TRUE(reference::evaluate_layer(problem, &stages).ok());
    const auto expected = reference::take_expected(std::move(stages));
    std::vector<reference::RankOutputs> outputs;
    for (int rank = 0; rank < problem.shape.num_ranks; ++rank) {
        outputs.push_back(ranks.outputs(rank));
        expect_same_signals(&ranks, rank);
    }
    std::vector<reference::RankJudgement> verdicts;
    ASSERT_TRUE(
        reference::judge_layer(problem, outputs, expected, reference::kHopperTolerance, &verdicts)
            .ok());
    double worst_stage = 0;
    double worst_rel_l2 = 0;
    for (const reference::RankJudgement& verdict : verdicts) {
        EXPECT_TRUE(verdict.ok) << verdict.first_failure;
        worst_stage = std::max(worst_stage, verdict.worst_excess);
        worst_rel_l2 = std::max(worst_rel_l2, verdict.rel_l2);
    }
    std::printf("%s: excess over half a step %.2e of a sum, relative L2 %.2e\n", GetParam().name,
                worst_stage, worst_rel_l2);
}

INSTANTIATE_TEST_SUITE_P(Gpu, Roles, testing::ValuesIn(cases()),
                         [](const auto& which) { return std::string(which.param.name); });

// Same inputs, same bits: on every launch and for every partition.
TEST_F(OnHopper, SameBitsOnEveryLaunchAndPartition) {
    GpuCase gpu_case = small_case(2, 33, 16, 2);
    GpuRanks first(gpu_case);
    ASSERT_EQ(first.run(1), "");
    const auto y = first.ranks()[1].y_copy;
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(first.run(1), "");
        ASSERT_EQ(first.ranks()[1].y_copy, y) << "launch " << i;
    }
    for (const int units : {2, 6, 40}) {
        gpu_case.dispatch_units = units / 2;
        gpu_case.compute_units = units;
        GpuRanks other(gpu_case);
        ASSERT_EQ(other.run(2), "");
        EXPECT_EQ(other.ranks()[1].y_copy, y) << units << " compute units";
    }
}

}  // namespace
}  // namespace gcmoe
