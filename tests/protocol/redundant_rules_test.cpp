// Rules whose loss no run of the CPU backend can show, because other rules imply them
// (docs/protocol.md proves it). These tests keep the proofs honest: the day a seed fails here, a
// rule has become needed and gets a mutant of its own.
#include <gtest/gtest.h>

#include "protocol/mutant_layer.hpp"

namespace gcmoe {
namespace {

using protocol::Rule;
using test::Outcome;
using test::Prepared;
using test::run_mutant;
using test::Scenario;

constexpr std::uint64_t kSeeds = 40;

void expect_harmless(Rule rule) {
    Scenario lists;
    lists.num_ranks = 3;
    lists.num_experts = 6;
    lists.inter = 256;
    lists.partition = {2, 2};
    lists.tokens = {{7, 5, 6}, {0, 9, 3}, {12, 0, 0}, {0, 0, 1}};
    Scenario small;
    small.tokens = {{1, 0}, {0, 1}, {0, 0}, {3, 2}};
    small.num_launches = 8;
    for (const Scenario& scenario : {lists, small}) {
        const Prepared prepared(scenario);
        for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
            const Outcome outcome = run_mutant(prepared, rule, seed);
            ASSERT_TRUE(outcome.good()) << "seed " << seed << ": " << outcome.text();
        }
    }
}

TEST(RedundantRules, R3CountHalves) { expect_harmless(Rule::kCountHalves); }

TEST(RedundantRules, R8BlockTag) { expect_harmless(Rule::kBlockTag); }

}  // namespace
}  // namespace gcmoe
