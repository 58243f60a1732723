// The roles' own sources, executed on the host: dispatch buffers and y equal to the CPU backend's
// byte for byte. Sums of 128 products of FP4 or FP8 codes fit FP32 here, so their order does not
// matter and the stand-in's wgmma gives the CPU backend's bits.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>

#include "host_stub/host_roles.hpp"
#include "op/operator_state.hpp"

namespace gcmoe::host_stub {
namespace {

struct HostCase {
    const char* name;
    Shape shape;
    int total_tokens;
    int row_block;
    int ring_blocks;
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

std::vector<HostCase> cases() {
    constexpr ActivationScale kFp32 = ActivationScale::kFp32K128;
    constexpr ActivationScale kUe8m0 = ActivationScale::kUe8m0K32;
    constexpr WeightPlacement kBefore = WeightPlacement::kBeforeRequantise;
    constexpr WeightPlacement kAfter = WeightPlacement::kAfterSecondGemm;
    return {{"K128Rows8", shape_of(1, kFp32, 0), 12, 8, 2},
            {"K128Rows16TwoRanks", shape_of(2, kFp32, 0), 30, 16, 1},
            {"K128Rows24Bias", with_bias(shape_of(1, kFp32, 0), kBefore), 40, 24, 2},
            {"K128Rows32WeightAfter", with_bias(shape_of(1, kFp32, 0), kAfter), 40, 32, 2},
            {"K128Rows64Shared", shape_of(1, kFp32, 128), 60, 64, 2},
            {"K32Rows16Shared", shape_of(2, kUe8m0, 128), 20, 16, 2},
            {"K32Rows32", shape_of(1, kUe8m0, 0), 40, 32, 2},
            {"K32Rows64", shape_of(1, kUe8m0, 0), 70, 64, 2}};
}

OperatorOptions options_of(const HostCase& which) {
    OperatorOptions options;
    options.max_tokens = which.total_tokens;
    options.poison = true;
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

class HostRoles : public testing::TestWithParam<HostCase> {};

TEST_P(HostRoles, SameBytesAsTheCpuBackend) {
    const HostCase& which = GetParam();
    test::VirtualLayer on_cpu(which.shape, {}, options_of(which));
    test::VirtualLayer on_host(which.shape, {}, options_of(which));
    const auto inputs =
        test::spread_inputs(which.shape, 3, which.total_tokens, which.total_tokens, 0.1);
    HostRanks ranks(&on_host, inputs);
    for (int launch = 0; launch < 2; ++launch) {
        ASSERT_EQ(ranks.run(), "");
        const auto want = on_cpu.run(inputs);
        for (int rank = 0; rank < which.shape.num_ranks; ++rank) {
            SCOPED_TRACE(rank);
            expect_same_dispatch(on_host.op(rank).state(), on_cpu.op(rank).state());
            const std::vector<std::uint16_t>& expected = want[static_cast<std::size_t>(rank)];
            EXPECT_TRUE(ranks.y(rank) == expected);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Stub, HostRoles, testing::ValuesIn(cases()),
                         [](const auto& which) { return std::string(which.param.name); });

}  // namespace
}  // namespace gcmoe::host_stub
