#include "support/trace_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gcmoe::test {
namespace {

using trace::Event;
using trace::Kind;
using trace::Trace;
using trace::Track;
using trace::UnitRoles;

void for_each_event(const Trace& trace, int rank, std::uint32_t generation,
                    const std::function<void(const Track&, const Event&)>& visit) {
    for (const Track& track : trace.tracks) {
        if (track.rank != rank) continue;
        for (const Event& event : track.events) {
            if (event.generation == generation) visit(track, event);
        }
    }
}

std::uint64_t count_events(const Trace& trace, const GpuLaunchFacts& facts, UnitRoles roles,
                           Kind kind) {
    std::uint64_t count = 0;
    for_each_event(trace, facts.rank, facts.generation,
                   [&](const Track& track, const Event& event) {
                       if (track.roles == roles && event.kind == kind) ++count;
                   });
    return count;
}

// When the events of a kind begin first and end last, by block.
struct Span {
    std::uint64_t begin_ns = ~std::uint64_t{0};
    std::uint64_t end_ns = 0;
};
std::map<std::uint32_t, Span> spans_of(const Trace& trace, const GpuLaunchFacts& facts, Kind kind) {
    std::map<std::uint32_t, Span> spans;
    for_each_event(trace, facts.rank, facts.generation, [&](const Track&, const Event& event) {
        if (event.kind != kind) return;
        Span& span = spans[event.block];
        span.begin_ns = std::min(span.begin_ns, event.begin_ns);
        span.end_ns = std::max(span.end_ns, event.end_ns);
    });
    return spans;
}

void expect_steps(const Trace& trace, const GpuLaunchFacts& facts) {
    const auto count = [&](UnitRoles roles, Kind kind) {
        return count_events(trace, facts, roles, kind);
    };
    const layout::PlanMemory& plan = facts.plan;
    EXPECT_EQ(count(UnitRoles::kRole1, Kind::kBegin),
              (facts.serial ? 2U : 1U) * plan.dispatch_units);
    EXPECT_EQ(count(UnitRoles::kRole1, Kind::kCount), 1U);
    EXPECT_EQ(count(UnitRoles::kRole1, Kind::kReceive), plan.dispatch_units);
    EXPECT_EQ(trace_sites(trace, facts.rank, facts.generation, Kind::kRoute),
              (TraceSites{{trace::kNoBlock, 0}, {trace::kNoBlock, 1}}));
    EXPECT_EQ(count(UnitRoles::kRole2, Kind::kBegin), plan.compute_units);
    EXPECT_GE(count(UnitRoles::kRole2, Kind::kWait), plan.compute_units);  // for the blocks
    EXPECT_EQ(count(UnitRoles::kRole3, Kind::kWait), plan.combine_units());
    EXPECT_EQ(count(UnitRoles::kRole3, Kind::kCombine), plan.combine_units());
}

void expect_order(const Trace& trace, const GpuLaunchFacts& facts) {
    const auto fills = spans_of(trace, facts, Kind::kFill);
    const auto first = spans_of(trace, facts, Kind::kFirstGemm);
    const auto second = spans_of(trace, facts, Kind::kSecondGemm);
    const auto combine = spans_of(trace, facts, Kind::kCombine);
    for (std::uint32_t block = 0; block < facts.blocks; ++block) {
        SCOPED_TRACE("block " + std::to_string(block));
        // A row is counted a moment before its event ends.
        EXPECT_LE(fills.at(block).begin_ns, first.at(block).begin_ns);
        EXPECT_LE(first.at(block).end_ns, second.at(block).begin_ns);
        if (facts.alone) {
            EXPECT_LE(second.at(block).end_ns, combine.at(trace::kNoBlock).begin_ns);
        }
    }
}

}  // namespace

void expect_no_overlap(const Trace& trace) {
    for (const Track& track : trace.tracks) {
        std::uint64_t last_ns = 0;
        for (const Event& event : track.events) {
            ASSERT_LE(event.begin_ns, event.end_ns);
            ASSERT_GE(event.begin_ns, last_ns)
                << "rank " << track.rank << ", " << trace::unit_roles_name(track.roles) << " unit "
                << track.unit << ": " << trace::kind_name(event.kind)
                << " begins inside the event before it";
            last_ns = event.end_ns;
        }
    }
}

TraceSites trace_sites(const Trace& trace, int rank, std::uint32_t generation, Kind kind) {
    TraceSites seen;
    for_each_event(trace, rank, generation, [&](const Track&, const Event& event) {
        if (event.kind != kind) return;
        EXPECT_TRUE(seen.emplace(event.block, event.task).second)
            << trace::kind_name(kind) << " of block " << event.block << ", task " << event.task
            << " twice";
    });
    return seen;
}

void expect_gpu_launch(const Trace& trace, const GpuLaunchFacts& facts) {
    SCOPED_TRACE("rank " + std::to_string(facts.rank) + ", generation " +
                 std::to_string(facts.generation));
    ASSERT_EQ(trace.num_dropped(), 0U);
    const auto sites = [&](Kind kind) {
        return trace_sites(trace, facts.rank, facts.generation, kind);
    };
    EXPECT_EQ(sites(Kind::kFill).size(), facts.rows);
    const TraceSites first = sites(Kind::kFirstGemm);
    const TraceSites second = sites(Kind::kSecondGemm);
    ASSERT_EQ(first.size(), facts.blocks * facts.plan.n1);
    ASSERT_EQ(second.size(), facts.blocks * facts.plan.n2);
    if (facts.blocks != 0) {
        EXPECT_EQ(*first.rbegin(),
                  (std::pair{static_cast<std::uint32_t>(facts.blocks - 1), facts.plan.n1 - 1}));
        EXPECT_EQ(*second.rbegin(),
                  (std::pair{static_cast<std::uint32_t>(facts.blocks - 1), facts.plan.n2 - 1}));
    }
    EXPECT_EQ(sites(Kind::kSharedFirst).size(), std::size_t{facts.shared_blocks} * facts.shared_n1);
    EXPECT_EQ(sites(Kind::kSharedSecond).size(), std::size_t{facts.shared_blocks} * facts.plan.n2);
    expect_steps(trace, facts);
    expect_order(trace, facts);
}

}  // namespace gcmoe::test
