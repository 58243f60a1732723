// Rows of an expert, round robin over the sources: the walk and the definition agree.
#include "schedule/round_robin.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "numerics/hash.hpp"

namespace gcmoe::schedule {
namespace {

bool operator==(const SourceRow& a, const SourceRow& b) {
    return a.source == b.source && a.index == b.index;
}

// By definition: slot 0 of every source that has one, then slot 1, and so on.
std::vector<SourceRow> by_definition(const std::vector<std::uint32_t>& counts) {
    std::vector<SourceRow> rows;
    std::uint32_t most = 0;
    for (const std::uint32_t count : counts) most = count > most ? count : most;
    for (std::uint32_t index = 0; index < most; ++index) {
        for (std::uint32_t source = 0; source < counts.size(); ++source) {
            if (counts[source] > index) rows.push_back({source, index});
        }
    }
    return rows;
}

void expect_agreement(const std::vector<std::uint32_t>& counts) {
    const auto look = [&counts](std::uint32_t source) { return counts[source]; };
    const auto num_ranks = static_cast<std::uint32_t>(counts.size());
    const std::vector<SourceRow> expected = by_definition(counts);
    RoundRobin walk(look, num_ranks);
    for (std::uint32_t position = 0; position < expected.size(); ++position) {
        EXPECT_TRUE(walk.next() == expected[position]) << "position " << position;
    }
}

TEST(RoundRobin, SmallestCases) {
    expect_agreement({0});
    expect_agreement({1});
    expect_agreement({0, 3});
    expect_agreement({3, 0});
    expect_agreement({0, 0, 1});
    expect_agreement({2, 2, 2});
    expect_agreement({1, 5, 0, 2});
}

TEST(RoundRobin, RandomCounts) {
    for (std::uint64_t trial = 0; trial < 400; ++trial) {
        const std::uint64_t word = numerics::splitmix64(trial);
        std::vector<std::uint32_t> counts(1 + word % 72);
        const std::uint64_t most = 1 + (word >> 8) % 40;
        for (std::size_t source = 0; source < counts.size(); ++source) {
            const std::uint64_t draw = numerics::hash_combine(word, source);
            // Half of the sources have nothing: most of an expert's counts are zero.
            counts[source] = draw % 2 == 0 ? 0 : static_cast<std::uint32_t>((draw >> 1) % most);
        }
        expect_agreement(counts);
    }
}

}  // namespace
}  // namespace gcmoe::schedule
