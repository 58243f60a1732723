// What every list of regions must keep, and whether an access stays inside its region.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "layout/regions.hpp"

namespace gcmoe::test {

// In order, aligned, disjoint, named once, and the total is the end of the last one.
inline void expect_sound_regions(const layout::RegionList& list, std::uint64_t bytes) {
    std::uint64_t end = 0;
    std::set<std::string> names;
    for (const layout::Region& region : list.regions()) {
        EXPECT_EQ(region.offset % 1024, 0U) << region.name;
        EXPECT_GE(region.offset, end) << region.name << " overlaps the region before";
        EXPECT_LT(region.offset, end + 1024) << "a hole before " << region.name;
        EXPECT_GT(region.bytes, 0U) << region.name;
        EXPECT_FALSE(region.shape.empty()) << region.name;
        EXPECT_TRUE(names.insert(region.name).second) << region.name << " stands twice";
        end = region.offset + region.bytes;
    }
    EXPECT_GE(bytes, end);
    EXPECT_LT(bytes, end + 1024);
    EXPECT_EQ(bytes % 1024, 0U);
    EXPECT_EQ(bytes, list.bytes());
}

// [pointer, pointer + bytes) lies in the region; `base` is where the list's offset 0 stands.
inline void expect_inside(const layout::Region& region, const void* base, const void* pointer,
                          std::uint64_t bytes) {
    ASSERT_FALSE(region.name.empty()) << "no such region";
    const auto at = reinterpret_cast<std::uint64_t>(pointer);
    const std::uint64_t first = reinterpret_cast<std::uint64_t>(base) + region.offset;
    EXPECT_GE(at, first) << region.name;
    EXPECT_LE(at + bytes, first + region.bytes) << region.name << " is overrun";
}

}  // namespace gcmoe::test
