// What a launch without generations would clear: the rank's own regions by name and size.
#include "layout/cleared_words.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace gcmoe::layout {
namespace {

class ClearedWordsTest : public testing::Test {
  protected:
    // The list, and the bytes of each region in the memory itself (of plan 0, without its prefix).
    RegionList make(int shared_inter) {
        Shape shape;
        shape.hidden = 512;
        shape.inter = 256;
        shape.shared_inter = shared_inter;
        shape.num_experts = 24;
        shape.topk = 4;
        shape.num_ranks = 3;
        std::vector<PlanMemory> plans(1);
        plans[0].row_block = 16;
        plans[0].ring_blocks = 32;
        RegionList symmetric;
        RegionList local;
        RankMemory memory;
        memory.heap = make_symmetric_heap(shape, 40, IndexType::kInt64, &symmetric);
        memory.local = make_local_memory(shape, {40, false}, &plans, &local);
        memory.plan = plans[0];
        memory.shared_chunks = static_cast<std::uint32_t>(shared_inter / 128);
        for (const RegionList* list : {&symmetric, &local}) {
            for (const Region& region : list->regions()) {
                const std::size_t dot = region.name.find('.');
                own_[dot == std::string::npos ? region.name : region.name.substr(dot + 1)] =
                    region.bytes;
            }
        }
        return cleared_words(memory);
    }
    std::map<std::string, std::uint64_t> own_;
};

TEST_F(ClearedWordsTest, HaveTheSizesOfTheRanksRegions) {
    for (const int shared_inter : {0, 128}) {
        const RegionList list = make(shared_inter);
        std::map<std::string, std::uint64_t> cleared;
        for (const Region& region : list.regions()) cleared[region.name] = region.bytes;
        EXPECT_EQ(cleared.size(), list.regions().size()) << "a region twice";
        EXPECT_EQ(cleared.count("shared_ready"), shared_inter == 0 ? 0U : 1U);
        for (const auto& [name, bytes] : cleared) {
            ASSERT_EQ(own_.count(name), 1U) << name;
            if (name == "recv_count") {
                EXPECT_EQ(2 * bytes, own_[name]);
            } else if (name == "words") {
                EXPECT_LT(bytes, own_[name]);
            } else {
                EXPECT_EQ(bytes, own_[name]) << name;
            }
        }
    }
}

// All that protocol/session.hpp sets but tags of a session, targets and what the host reads.
TEST_F(ClearedWordsTest, AreTheSignals) {
    std::vector<std::string> names;
    const RegionList list = make(128);
    for (const Region& region : list.regions()) names.push_back(region.name);
    EXPECT_EQ(names,
              (std::vector<std::string>{
                  "recv_count", "done", "block_table", "num_blocks", "rows_left", "shared_ready",
                  "l1_full_count", "l1_empty_count", "l2_full_mask", "l2_empty_count", "words"}));
}

}  // namespace
}  // namespace gcmoe::layout
