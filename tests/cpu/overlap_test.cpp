// Overlap: with 64 tokens a rank, role 2 starts before role 1 has pulled its last row; with overlap
// off it never does. Shown by the roles' own time stamps.
#include <gtest/gtest.h>

#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

constexpr int kTokens = 64;
constexpr int kRuns = 40;

// How many of kRuns x ranks launches had role 2's first routed task before role 1's last row.
int count_overlapped(bool overlap) {
    const Shape shape = test::small_shape(4);
    OperatorOptions options;
    options.max_tokens = kTokens;
    options.plans.resize(1);
    options.plans[0].row_block = 16;
    options.plans[0].overlap = overlap;
    options.plans[0].ring_blocks = overlap ? 4 : 0;
    test::VirtualLayer layer(shape, {}, options);
    const auto inputs = test::spread_inputs(shape, 3, 4 * kTokens, kTokens);
    int overlapped = 0;
    for (int run = 0; run < kRuns; ++run) {
        layer.run(inputs);
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
            const LaunchTimes times = layer.op(rank).statistics().times;
            EXPECT_GE(times.role2_first_task_us, 0.0);
            EXPECT_GE(times.role1_last_row_us, times.role1_first_row_us);
            EXPECT_GE(times.role3_begin_us, times.role1_end_us);
            if (times.role2_first_task_us < times.role1_last_row_us) ++overlapped;
        }
    }
    return overlapped;
}

TEST(Overlap, OnStartsRole2BeforeTheLastRow) {
    EXPECT_GE(count_overlapped(true), kRuns * 4 * 9 / 10) << "of " << kRuns * 4;
}

TEST(Overlap, OffNeverDoes) { EXPECT_EQ(count_overlapped(false), 0); }

}  // namespace
}  // namespace gcmoe
