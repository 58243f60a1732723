// Shapes and capacities on which every layout is checked: models, and the corners of each limit.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gcmoe/shape.hpp"
#include "layout/local_memory.hpp"
#include "layout/regions.hpp"

namespace gcmoe::test {

struct LayoutCase {
    std::string name;
    Shape shape;
    int max_tokens = 0;
    IndexType index_type = IndexType::kInt64;
};

inline void PrintTo(const LayoutCase& one, std::ostream* out) { *out << one.name; }
inline std::string layout_case_name(const testing::TestParamInfo<LayoutCase>& info) {
    return info.param.name;
}

inline Shape layout_shape(int hidden, int inter, int experts, int topk, int ranks, int shared) {
    Shape shape;
    shape.hidden = hidden;
    shape.inter = inter;
    shape.num_experts = experts;
    shape.topk = topk;
    shape.num_ranks = ranks;
    shape.shared_inter = shared;
    return shape;
}

inline std::vector<LayoutCase> layout_cases() {
    constexpr auto k32 = IndexType::kInt32;
    constexpr auto k64 = IndexType::kInt64;
    return {
        {"Smallest", layout_shape(128, 128, 1, 1, 1, 0), 1, k32},
        {"SmallestShared", layout_shape(128, 128, 1, 1, 1, 128), 1, k64},
        {"OddTokens", layout_shape(384, 256, 6, 3, 3, 128), 7, k32},
        {"Flash", layout_shape(4096, 2048, 256, 6, 8, 2048), 256, k64},
        {"Flash41", layout_shape(5120, 2304, 384, 6, 8, 2304), 256, k64},
        {"Pro", layout_shape(7168, 3072, 384, 6, 16, 3072), 1280, k32},
        {"MostRanks", layout_shape(4096, 2048, 288, 8, 72, 0), 256, k64},
        {"MostExperts", layout_shape(128, 128, 65536, 2, 1, 0), 33, k32},
        {"WidestInter", layout_shape(128, 8192, 8, 2, 2, 8192), 65, k64},
        {"MostSlots", layout_shape(7168, 2048, 144, 1, 72, 2048), (1 << 24) - 1, k64},
        {"WidestHidden", layout_shape(1 << 20, 128, 8, 2, 8, 128), 100, k64},
    };
}

// Plan sizes that share one ring: the largest ring, the widest block, both ends of B.
inline std::vector<layout::PlanMemory> layout_plans(const Shape& shape) {
    std::vector<layout::PlanMemory> plans;
    for (const auto& [row_block, ring_blocks] :
         std::vector<std::pair<int, int>>{{8, 1}, {64, 2}, {8, 32}, {24, 4}}) {
        layout::PlanMemory plan;
        plan.row_block = static_cast<std::uint32_t>(row_block);
        plan.ring_blocks = static_cast<std::uint32_t>(ring_blocks);
        plan.n1 = static_cast<std::uint32_t>(shape.inter / 128);
        plan.n2 = static_cast<std::uint32_t>(shape.hidden / 128);
        plan.second_columns = 128;
        plan.dispatch_units = 2;
        plan.compute_units = 4;
        plans.push_back(plan);
    }
    return plans;
}

// The region that starts at an offset.
inline layout::Region region_at(const layout::RegionList& list, std::uint64_t offset) {
    for (const layout::Region& region : list.regions()) {
        if (region.offset == offset) return region;
    }
    return {};
}

}  // namespace gcmoe::test
