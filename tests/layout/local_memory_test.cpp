// Local memory: aligned disjoint regions, rings that hold every plan's blocks, signals of each plan
// apart, accessors inside their regions up to the last index.
#include "layout/local_memory.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "layout/layout_shapes.hpp"
#include "layout/rank_memory.hpp"
#include "layout/region_checks.hpp"

namespace gcmoe {
namespace {

using layout::LocalMemory;
using layout::PlanMemory;
using layout::RankMemory;
using layout::RegionList;
using test::expect_inside;
using test::LayoutCase;
using test::region_at;

std::uint8_t* const kBase = reinterpret_cast<std::uint8_t*>(std::uint64_t{1} << 40);

class LocalLayout : public testing::TestWithParam<LayoutCase> {
  protected:
    void SetUp() override { lay_out(false); }

    void lay_out(bool capture) {
        const LayoutCase& one = GetParam();
        list_ = RegionList();
        plans_ = test::layout_plans(one.shape);
        local_ = layout::make_local_memory(one.shape, {one.max_tokens, capture}, &plans_, &list_);
    }
    [[nodiscard]] RankMemory memory(const PlanMemory& plan) const {
        const LayoutCase& one = GetParam();
        RankMemory memory;
        memory.heap =
            layout::make_symmetric_heap(one.shape, one.max_tokens, one.index_type, nullptr);
        memory.local = local_;
        memory.plan = plan;
        memory.local_base = kBase;
        memory.hidden_chunks = static_cast<std::uint32_t>(one.shape.hidden / 128);
        memory.inter_chunks = static_cast<std::uint32_t>(one.shape.inter / 128);
        return memory;
    }
    void inside(std::uint64_t offset, const void* pointer, std::uint64_t bytes) const {
        expect_inside(region_at(list_, offset), kBase, pointer, bytes);
    }

    RegionList list_;
    std::vector<PlanMemory> plans_;
    LocalMemory local_;
};

TEST_P(LocalLayout, RegionsAreAlignedAndDisjoint) {
    test::expect_sound_regions(list_, local_.bytes);
    EXPECT_EQ(local_.has_capture, 0U);
    lay_out(true);
    test::expect_sound_regions(list_, local_.bytes);
    EXPECT_EQ(local_.has_capture, 1U);
}

TEST_P(LocalLayout, RingHoldsEveryPlansBlocks) {
    for (const PlanMemory& plan : plans_) {
        const RankMemory rank = memory(plan);
        const std::uint32_t last = plan.ring_blocks - 1;
        for (const bool act : {false, true}) {
            const layout::ChunkedRows rows = act ? rank.ring_act() : rank.ring_x();
            const std::uint32_t chunk = rows.num_chunks - 1;
            inside(act ? local_.ring_act : local_.ring_x, rows.chunk(last, chunk),
                   std::uint64_t{plan.row_block} * 128);
            inside(act ? local_.ring_act_scale : local_.ring_x_scale, rows.scale(last, chunk),
                   std::uint64_t{plan.row_block} * 4);
        }
        inside(local_.ring_origin, rank.ring_origins(last), std::uint64_t{plan.row_block} * 16);
        inside(local_.act_origin, rank.act_origins(last), std::uint64_t{plan.row_block} * 16);
    }
}

TEST_P(LocalLayout, SignalsStayInsideAndApart) {
    for (const PlanMemory& plan : plans_) {
        const RankMemory rank = memory(plan);
        const std::uint32_t last = plan.ring_blocks - 1;
        inside(plan.l1_full_count, rank.l1_full_count(last), 4);
        inside(plan.l1_empty_count, rank.l1_empty_count(last), 4);
        inside(plan.l2_full_mask, rank.l2_full_mask(last), 8);
        inside(plan.l2_empty_count, rank.l2_empty_count(last), 4);
        inside(plan.words, rank.words(), sizeof(layout::PlanWords));
    }
}

TEST_P(LocalLayout, BlockTableHoldsMostBlocksOfALaunch) {
    const Shape& shape = GetParam().shape;
    for (const PlanMemory& plan : plans_) {
        const std::uint64_t most = layout::most_blocks(
            static_cast<std::uint64_t>(shape.num_ranks),
            static_cast<std::uint64_t>(GetParam().max_tokens),
            static_cast<std::uint64_t>(shape.topk),
            static_cast<std::uint64_t>(shape.experts_per_rank()), plan.row_block);
        EXPECT_GE(plan.table_blocks, most);
        EXPECT_TRUE(std::has_single_bit(plan.table_blocks));
        inside(local_.block_table, memory(plan).block_table() + plan.table_blocks - 1, 8);
    }
}

TEST_P(LocalLayout, TablesStayInside) {
    const RankMemory rank = memory(plans_.front());
    const Shape& shape = GetParam().shape;
    const auto last_rank = static_cast<std::uint32_t>(shape.num_ranks - 1);
    const auto experts = static_cast<std::uint64_t>(shape.experts_per_rank());
    inside(local_.source_count, rank.source_count(last_rank), experts * 4);
    inside(local_.source_offset, rank.source_offset(last_rank), experts * 4);
    inside(local_.rows_left, rank.rows_left() + last_rank, 4);
    inside(local_.rows_left_target, rank.rows_left_target() + last_rank, 4);
    inside(local_.num_blocks, rank.num_blocks(), 8);
    inside(local_.state, rank.state(), sizeof(layout::StateWords));
    inside(local_.stall_report, rank.at<StallReport>(local_.stall_report), sizeof(StallReport));
    inside(local_.statistics, rank.at<std::uint64_t>(local_.statistics) + experts - 1, 8);
}

TEST_P(LocalLayout, SharedExpertHasRoomForEveryToken) {
    const Shape& shape = GetParam().shape;
    const auto tokens = static_cast<std::uint64_t>(GetParam().max_tokens);
    EXPECT_EQ(local_.shared_blocks, (tokens + 7) / 8);
    if (shape.shared_inter == 0) {
        EXPECT_EQ(local_.shared_row, 0U);
        return;
    }
    const auto inter = static_cast<std::uint64_t>(shape.shared_inter);
    EXPECT_EQ(region_at(list_, local_.shared_act).bytes, tokens * inter);
    EXPECT_EQ(region_at(list_, local_.shared_act_scale).bytes, tokens * inter / 128 * 4);
    EXPECT_EQ(region_at(list_, local_.shared_row).bytes,
              tokens * static_cast<std::uint64_t>(shape.hidden) * 2);
    const RankMemory rank = memory(plans_.front());
    inside(local_.shared_ready, rank.shared_ready(local_.shared_blocks - 1), 4);
}

TEST_P(LocalLayout, CaptureHasRoomForEverySlotOfEveryRank) {
    lay_out(true);
    const Shape& shape = GetParam().shape;
    const std::uint64_t slots = static_cast<std::uint64_t>(shape.num_ranks) *
                                static_cast<std::uint64_t>(GetParam().max_tokens) *
                                static_cast<std::uint64_t>(shape.topk);
    const auto inter = static_cast<std::uint64_t>(shape.inter);
    EXPECT_EQ(region_at(list_, local_.capture_act).bytes, slots * inter);
    EXPECT_EQ(region_at(list_, local_.capture_act_scale).bytes, slots * inter / 128 * 4);
}

INSTANTIATE_TEST_SUITE_P(, LocalLayout, testing::ValuesIn(test::layout_cases()),
                         test::layout_case_name);

// most_blocks against the worst distribution of slots over experts, by trying them all.
TEST(MostBlocks, IsAnUpperBoundAndReached) {
    for (const std::uint64_t row_block : {8U, 16U, 64U}) {
        for (std::uint64_t slots = 1; slots <= 150; ++slots) {
            for (const std::uint64_t experts : {1U, 2U, 5U}) {
                // One row on all experts but one, the rest there: the most partly filled blocks.
                const std::uint64_t used = std::min(slots, experts);
                const std::uint64_t rest = slots - (used - 1);
                const std::uint64_t blocks = used - 1 + (rest + row_block - 1) / row_block;
                EXPECT_GE(layout::most_blocks(1, slots, 1, experts, row_block), blocks);
                EXPECT_LE(layout::most_blocks(1, slots, 1, experts, row_block), blocks + 1);
            }
        }
    }
    EXPECT_EQ(layout::most_blocks(4, 0, 2, 8, 16), 0U);
}

}  // namespace
}  // namespace gcmoe
