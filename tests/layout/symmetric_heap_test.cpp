// The symmetric heap: aligned disjoint regions, every accessor inside its region up to the last
// index, and the peer descriptor's bytes.
#include "layout/symmetric_heap.hpp"

#include <gtest/gtest.h>

#include <cstddef>

#include "layout/layout_shapes.hpp"
#include "layout/peer_table.hpp"
#include "layout/region_checks.hpp"

namespace gcmoe {
namespace {

using layout::PeerTable;
using layout::RegionList;
using layout::SymmetricHeap;
using test::expect_inside;
using test::LayoutCase;
using test::region_at;

// No access is made: only addresses are computed.
std::uint8_t* const kBase = reinterpret_cast<std::uint8_t*>(std::uint64_t{1} << 40);

class HeapLayout : public testing::TestWithParam<LayoutCase> {
  protected:
    void SetUp() override {
        const LayoutCase& one = GetParam();
        heap_ = layout::make_symmetric_heap(one.shape, one.max_tokens, one.index_type, &list_);
        last_token_ = static_cast<std::uint32_t>(one.max_tokens - 1);
        last_rank_ = static_cast<std::uint32_t>(one.shape.num_ranks - 1);
        last_expert_ = static_cast<std::uint32_t>(one.shape.experts_per_rank() - 1);
        num_slots_ =
            static_cast<std::uint64_t>(one.max_tokens) * static_cast<std::uint64_t>(one.shape.topk);
    }

    RegionList list_;
    SymmetricHeap heap_;
    std::uint32_t last_token_ = 0;
    std::uint32_t last_rank_ = 0;
    std::uint32_t last_expert_ = 0;
    std::uint64_t num_slots_ = 0;
};

TEST_P(HeapLayout, RegionsAreAlignedAndDisjoint) {
    test::expect_sound_regions(list_, heap_.bytes);
    EXPECT_EQ(list_.regions().size(), 9U);
    EXPECT_EQ(heap_.max_slots(), num_slots_);
}

TEST_P(HeapLayout, ListMayBeNull) {
    const LayoutCase& one = GetParam();
    const SymmetricHeap heap =
        layout::make_symmetric_heap(one.shape, one.max_tokens, one.index_type, nullptr);
    EXPECT_EQ(heap.bytes, heap_.bytes);
    EXPECT_EQ(heap.fault, heap_.fault);
}

TEST_P(HeapLayout, RowStridesHoldARowAndKeepItAligned) {
    const auto hidden = static_cast<std::uint32_t>(GetParam().shape.hidden);
    EXPECT_GE(heap_.x_stride, hidden);
    EXPECT_EQ(heap_.x_stride % 128, 0U);
    EXPECT_GE(heap_.combine_stride, 2 * hidden);
    EXPECT_EQ(heap_.combine_stride % 128, 0U);
    EXPECT_EQ(heap_.x_scale_stride, (hidden / 128 + 3) / 4 * 4);
    EXPECT_EQ(heap_.index_bytes, GetParam().index_type == IndexType::kInt64 ? 8U : 4U);
}

TEST_P(HeapLayout, InputsStayInsideForFirstAndLastToken) {
    const std::uint64_t hidden = static_cast<std::uint64_t>(GetParam().shape.hidden);
    for (const std::uint32_t token : {0U, last_token_}) {
        expect_inside(region_at(list_, heap_.x), kBase, heap_.x_row(kBase, token), hidden);
        expect_inside(region_at(list_, heap_.x_scale), kBase, heap_.x_scale_row(kBase, token),
                      hidden / 128 * 4);
    }
    expect_inside(region_at(list_, heap_.topk_weight), kBase, heap_.weight(kBase) + num_slots_ - 1,
                  4);
    EXPECT_EQ(region_at(list_, heap_.topk_idx).bytes, num_slots_ * heap_.index_bytes);
}

TEST_P(HeapLayout, ReceivedStaysInsideForEveryCorner) {
    for (const std::uint32_t generation : {0U, 1U, 0xFFFFFFFEU, 0xFFFFFFFFU}) {
        for (const std::uint32_t source : {0U, last_rank_}) {
            for (const std::uint32_t expert : {0U, last_expert_}) {
                expect_inside(region_at(list_, heap_.recv_count), kBase,
                              heap_.recv_count_word(kBase, generation, source, expert), 8);
            }
            expect_inside(region_at(list_, heap_.recv_slot), kBase,
                          heap_.recv_slot_list(kBase, generation, source), num_slots_ * 4);
        }
    }
    EXPECT_NE(heap_.recv_count_word(kBase, 0, last_rank_, last_expert_),
              heap_.recv_count_word(kBase, 1, last_rank_, last_expert_));
    EXPECT_EQ(heap_.recv_slot_list(kBase, 1, 0), heap_.recv_slot_list(kBase, 3, 0));
}

TEST_P(HeapLayout, ResultsStayInsideForEveryCorner) {
    const std::uint64_t row = 2 * static_cast<std::uint64_t>(GetParam().shape.hidden);
    for (const std::uint64_t slot : {std::uint64_t{0}, num_slots_ - 1}) {
        expect_inside(region_at(list_, heap_.combine), kBase, heap_.combine_row(kBase, slot), row);
    }
    for (const std::uint32_t source : {0U, last_rank_}) {
        expect_inside(region_at(list_, heap_.done), kBase, heap_.done_word(kBase, source), 8);
        expect_inside(region_at(list_, heap_.fault), kBase, heap_.fault_word(kBase, source), 8);
    }
}

INSTANTIATE_TEST_SUITE_P(, HeapLayout, testing::ValuesIn(test::layout_cases()),
                         test::layout_case_name);

TEST(HeapIds, AreReadInBothWidths) {
    for (const IndexType type : {IndexType::kInt32, IndexType::kInt64}) {
        const SymmetricHeap heap =
            layout::make_symmetric_heap(test::layout_shape(128, 128, 8, 2, 1, 0), 2, type, nullptr);
        std::vector<std::uint64_t> memory(heap.bytes / 8);
        auto* base = reinterpret_cast<std::uint8_t*>(memory.data());
        if (type == IndexType::kInt64) {
            auto* ids = reinterpret_cast<std::int64_t*>(base + heap.topk_idx);
            ids[0] = -1;
            ids[3] = std::int64_t{1} << 40;
            EXPECT_EQ(heap.expert_id(base, 3), std::int64_t{1} << 40);
        } else {
            auto* ids = reinterpret_cast<std::int32_t*>(base + heap.topk_idx);
            ids[0] = -1;
            ids[3] = 0x7FFFFFFF;
            EXPECT_EQ(heap.expert_id(base, 3), 0x7FFFFFFF);
        }
        EXPECT_EQ(heap.expert_id(base, 0), -1);
    }
}

TEST(PeerTable, Has592BytesInTheDocumentedOrder) {
    EXPECT_EQ(sizeof(PeerTable), 592U);
    EXPECT_EQ(offsetof(PeerTable, base), 0U);
    EXPECT_EQ(offsetof(PeerTable, offset), 8U);
    EXPECT_EQ(offsetof(PeerTable, rank), 584U);
    EXPECT_EQ(offsetof(PeerTable, num_ranks), 588U);
    EXPECT_TRUE(std::is_trivially_copyable_v<PeerTable>);
}

TEST(PeerTable, ReachesHeapsBelowAndAboveTheOwn) {
    PeerTable peers;
    peers.base = std::uint64_t{1} << 46;
    peers.offset[1] = -(std::int64_t{1} << 45);
    peers.offset[71] = std::int64_t{1} << 46;
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(peers.heap(0)), std::uint64_t{1} << 46);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(peers.heap(1)), std::uint64_t{1} << 45);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(peers.heap(71)), std::uint64_t{1} << 47);
}

}  // namespace
}  // namespace gcmoe
