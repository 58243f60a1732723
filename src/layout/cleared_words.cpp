#include "layout/cleared_words.hpp"

namespace gcmoe::layout {
namespace {

// ticket, shared_ticket, role1_arrived, role1_left, role2_left, role3_arrived.
constexpr std::uint64_t kWordsOfPlan = 6;

}  // namespace

RegionList cleared_words(const RankMemory& memory) {
    const std::uint64_t ranks = memory.heap.num_ranks;
    const std::uint64_t places = memory.plan.ring_blocks;
    RegionList list;
    list.add("recv_count", "(num_ranks, experts_per_rank) u64",
             ranks * memory.heap.experts_per_rank * 8);
    list.add("done", "(num_ranks) u64", ranks * 8);
    list.add("block_table", "(table_blocks) u64", std::uint64_t{memory.plan.table_blocks} * 8);
    list.add("num_blocks", "u64", 8);
    list.add("rows_left", "(num_ranks) u32", ranks * 4);
    if (memory.shared_chunks != 0) {
        list.add("shared_ready", "(row blocks) u32", std::uint64_t{memory.local.shared_blocks} * 4);
    }
    list.add("l1_full_count", "(ring_blocks) u32", places * 4);
    list.add("l1_empty_count", "(ring_blocks) u32", places * 4);
    list.add("l2_full_mask", "(ring_blocks) u64", places * 8);
    list.add("l2_empty_count", "(ring_blocks) u32", places * 4);
    list.add("words", "(6) u64", kWordsOfPlan * 8);
    return list;
}

}  // namespace gcmoe::layout
