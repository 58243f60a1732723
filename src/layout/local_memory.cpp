#include "layout/local_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "gcmoe/stall_report.hpp"

namespace gcmoe::layout {
namespace {

// Ring bytes are shared by the plans: the largest of them decides.
std::uint64_t most_ring_rows(const std::vector<PlanMemory>& plans) {
    std::uint64_t rows = 0;
    for (const PlanMemory& plan : plans) {
        rows = std::max(rows, std::uint64_t{plan.ring_blocks} * plan.row_block);
    }
    return rows;
}

void add_ring(const Shape& shape, std::uint64_t rows, LocalMemory* local, RegionList* regions) {
    const auto hidden = static_cast<std::uint64_t>(shape.hidden);
    const auto inter = static_cast<std::uint64_t>(shape.inter);
    local->ring_x =
        regions->add("ring_x", fmt::format("({} rows, {}) e4m3", rows, hidden), rows * hidden);
    local->ring_x_scale =
        regions->add("ring_x_scale", fmt::format("({} rows, {}) words", rows, hidden / 128),
                     rows * hidden / 128 * 4);
    local->ring_origin =
        regions->add("ring_origin", fmt::format("({} rows) Origin", rows), rows * sizeof(Origin));
    local->ring_act =
        regions->add("ring_act", fmt::format("({} rows, {}) e4m3", rows, inter), rows * inter);
    local->ring_act_scale =
        regions->add("ring_act_scale", fmt::format("({} rows, {}) words", rows, inter / 128),
                     rows * inter / 128 * 4);
    local->act_origin =
        regions->add("act_origin", fmt::format("({} rows) Origin", rows), rows * sizeof(Origin));
}

void add_tables(const Shape& shape, std::uint64_t table_blocks, LocalMemory* local,
                RegionList* regions) {
    const auto ranks = static_cast<std::uint64_t>(shape.num_ranks);
    const auto experts = static_cast<std::uint64_t>(shape.experts_per_rank());
    local->block_table =
        regions->add("block_table", fmt::format("({}) u64", table_blocks), table_blocks * 8);
    local->num_blocks = regions->add("num_blocks", "u64", 8);
    local->source_offset = regions->add(
        "source_offset", fmt::format("({}, {}) u32", ranks, experts), ranks * experts * 4);
    local->source_count = regions->add("source_count", fmt::format("({}, {}) u32", ranks, experts),
                                       ranks * experts * 4);
    local->rows_left = regions->add("rows_left", fmt::format("({}) u32", ranks), ranks * 4);
    local->rows_left_target =
        regions->add("rows_left_target", fmt::format("({}) u32", ranks), ranks * 4);
    local->statistics = regions->add("statistics", fmt::format("({}) u64", experts), experts * 8);
    local->state = regions->add("state", "StateWords", sizeof(StateWords));
    local->stall_report = regions->add("stall_report", "StallReport", sizeof(StallReport));
}

void add_shared(const Shape& shape, std::uint64_t tokens, LocalMemory* local, RegionList* regions) {
    const auto inter = static_cast<std::uint64_t>(shape.shared_inter);
    local->shared_blocks =
        static_cast<std::uint32_t>(ceil_div(tokens, std::uint64_t{kMinRowBlock}));
    if (inter == 0) return;
    const auto hidden = static_cast<std::uint64_t>(shape.hidden);
    local->shared_act =
        regions->add("shared_act", fmt::format("({}, {}) e4m3", tokens, inter), tokens * inter);
    local->shared_act_scale =
        regions->add("shared_act_scale", fmt::format("({}, {}) words", tokens, inter / 128),
                     tokens * inter / 128 * 4);
    local->shared_row = regions->add("shared_row", fmt::format("({}, {}) bf16", tokens, hidden),
                                     tokens * hidden * 2);
    local->shared_ready =
        regions->add("shared_ready", fmt::format("({}) u32", local->shared_blocks),
                     std::uint64_t{local->shared_blocks} * 4);
}

void add_capture(const Shape& shape, std::uint64_t tokens, LocalMemory* local,
                 RegionList* regions) {
    local->has_capture = 1;
    const auto slots = static_cast<std::uint64_t>(shape.num_ranks) * tokens *
                       static_cast<std::uint64_t>(shape.topk);
    const auto inter = static_cast<std::uint64_t>(shape.inter);
    local->capture_act =
        regions->add("capture_act", fmt::format("({}, {}) e4m3", slots, inter), slots * inter);
    local->capture_act_scale =
        regions->add("capture_act_scale", fmt::format("({}, {}) words", slots, inter / 128),
                     slots * inter / 128 * 4);
}

void add_plan(int plan_idx, PlanMemory* plan, RegionList* regions) {
    const std::uint64_t blocks = plan->ring_blocks;
    plan->ring_shift = static_cast<std::uint32_t>(std::countr_zero(blocks));
    const auto name = [&](const char* signal) {
        return fmt::format("plan{}.{}", plan_idx, signal);
    };
    plan->l1_full_count =
        regions->add(name("l1_full_count"), fmt::format("({}) u32", blocks), blocks * 4);
    plan->l1_empty_count =
        regions->add(name("l1_empty_count"), fmt::format("({}) u32", blocks), blocks * 4);
    plan->l2_full_mask =
        regions->add(name("l2_full_mask"), fmt::format("({}) u64", blocks), blocks * 8);
    plan->l2_empty_count =
        regions->add(name("l2_empty_count"), fmt::format("({}) u32", blocks), blocks * 4);
    plan->words = regions->add(name("words"), "PlanWords", sizeof(PlanWords));
}

}  // namespace

LocalMemory make_local_memory(const Shape& shape, const LocalOptions& options,
                              std::vector<PlanMemory>* plans, RegionList* list) {
    RegionList own;
    RegionList& regions = list != nullptr ? *list : own;
    const auto tokens = static_cast<std::uint64_t>(options.max_tokens);
    std::uint64_t table_blocks = 1;
    for (PlanMemory& plan : *plans) {
        const std::uint64_t blocks =
            most_blocks(static_cast<std::uint64_t>(shape.num_ranks), tokens,
                        static_cast<std::uint64_t>(shape.topk),
                        static_cast<std::uint64_t>(shape.experts_per_rank()), plan.row_block);
        plan.table_blocks =
            static_cast<std::uint32_t>(std::bit_ceil(std::max<std::uint64_t>(blocks, 1)));
        table_blocks = std::max(table_blocks, std::uint64_t{plan.table_blocks});
    }
    LocalMemory local;
    add_ring(shape, most_ring_rows(*plans), &local, &regions);
    add_tables(shape, table_blocks, &local, &regions);
    add_shared(shape, tokens, &local, &regions);
    if (options.capture) add_capture(shape, tokens, &local, &regions);
    for (std::size_t i = 0; i < plans->size(); ++i) {
        add_plan(static_cast<int>(i), &(*plans)[i], &regions);
    }
    local.bytes = regions.bytes();
    return local;
}

}  // namespace gcmoe::layout
