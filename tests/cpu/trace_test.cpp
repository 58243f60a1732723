// What the CPU's units record: every task once, nothing twice at a time, nothing when off.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "op/operator_state.hpp"
#include "support/trace_checks.hpp"
#include "support/virtual_layer.hpp"
#include "trace/trace.hpp"

namespace gcmoe {
namespace {

using trace::Event;
using trace::Kind;
using trace::Trace;
using trace::Track;

constexpr int kRanks = 4;
constexpr int kTokens = 40;

OperatorOptions traced_options(int trace_events) {
    OperatorOptions options;
    options.max_tokens = kTokens / kRanks;
    options.trace_events = trace_events;
    options.wait_limits = {60.0, 60.0};
    options.plans.resize(1);
    options.plans[0].row_block = 8;
    options.plans[0].ring_blocks = 2;
    options.plans[0].partition = {2, 3};
    return options;
}

// Launches of a layer with a shared expert, and what was recorded.
class TracedLayer {
  public:
    TracedLayer(const GroupOptions& group, const OperatorOptions& options, int launches = 1)
        : shape_(test::small_shape(kRanks, 128)), layer_(shape_, group, options) {
        const auto inputs = test::spread_inputs(shape_, 5, kTokens, options.max_tokens, 0.1);
        for (int i = 0; i < launches; ++i) layer_.run(inputs);
    }
    [[nodiscard]] Trace collect() {
        Trace trace;
        const Status status = op::collect_trace(layer_.all(), &trace);
        EXPECT_TRUE(status.ok()) << status.message();
        return trace;
    }
    [[nodiscard]] test::VirtualLayer& layer() { return layer_; }
    [[nodiscard]] std::uint64_t blocks(int rank) { return layer_.op(rank).statistics().blocks; }

  private:
    Shape shape_;
    test::VirtualLayer layer_;
};

test::TraceSites sites(const Trace& trace, int rank, Kind kind) {
    return test::trace_sites(trace, rank, 1, kind);
}

std::set<std::uint32_t> blocks_in(const test::TraceSites& sites) {
    std::set<std::uint32_t> blocks;
    for (const auto& [block, task] : sites) blocks.insert(block);
    return blocks;
}

void expect_every_task_once(TracedLayer* layer) {
    const Trace trace = layer->collect();
    EXPECT_EQ(trace.num_dropped(), 0U);
    test::expect_no_overlap(trace);
    for (int rank = 0; rank < kRanks; ++rank) {
        const layout::PlanMemory& plan = layer->layer().op(rank).state().plans[0].memory;
        const std::uint64_t blocks = layer->blocks(rank);
        ASSERT_GT(blocks, 2U) << "more than the ring holds";
        EXPECT_EQ(sites(trace, rank, Kind::kFirstGemm).size(), blocks * plan.n1);
        EXPECT_EQ(sites(trace, rank, Kind::kRequantise).size(), blocks * plan.n1);
        EXPECT_EQ(sites(trace, rank, Kind::kSecondGemm).size(), blocks * plan.n2);
        EXPECT_EQ(sites(trace, rank, Kind::kSharedFirst).size(), 2U);  // 10 tokens, blocks of 8
        EXPECT_EQ(sites(trace, rank, Kind::kSharedSecond).size(), std::size_t{2} * plan.n2);
        EXPECT_EQ(sites(trace, rank, Kind::kCombine).size(), plan.compute_units);
        EXPECT_EQ(sites(trace, rank, Kind::kRoute).size(), 2U);
        for (const Kind kind : {Kind::kFill, Kind::kFirstGemm, Kind::kSecondGemm}) {
            const auto seen = blocks_in(sites(trace, rank, kind));
            EXPECT_EQ(seen.size(), blocks) << trace::kind_name(kind);
            EXPECT_EQ(*seen.rbegin(), blocks - 1) << trace::kind_name(kind);
        }
    }
}

TEST(Trace, ThreadsRecordEveryTaskOnce) {
    TracedLayer layer({}, traced_options(4096));
    expect_every_task_once(&layer);
}

TEST(Trace, StepperRecordsTheSameTasks) {
    for (const std::uint64_t seed : {1, 2, 3}) {
        GroupOptions group;
        group.executor = ExecutorKind::kStepper;
        group.seed = seed;
        TracedLayer layer(group, traced_options(4096));
        expect_every_task_once(&layer);
    }
}

// An event comes after what it needs: fill, first GEMM, second GEMM of a block, then combine.
TEST(Trace, OrderIsThatOfTheData) {
    TracedLayer layer({}, traced_options(4096));
    const Trace trace = layer.collect();
    using Place = std::tuple<int, std::uint32_t, Kind>;
    std::map<Place, std::uint64_t> begin;
    std::map<Place, std::uint64_t> end;
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) {
            const Place place{track.rank, event.block, event.kind};
            const auto first = begin.emplace(place, event.begin_ns).first;
            first->second = std::min(first->second, event.begin_ns);
            end[place] = std::max(end[place], event.end_ns);
        }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
        for (std::uint32_t block = 0; block < layer.blocks(rank); ++block) {
            const Place fill{rank, block, Kind::kFill};
            const Place first{rank, block, Kind::kFirstGemm};
            const Place store{rank, block, Kind::kRequantise};
            const Place second{rank, block, Kind::kSecondGemm};
            ASSERT_LE(begin.at(fill), begin.at(first));
            ASSERT_LE(end.at(first), begin.at(second)) << "rank " << rank << " block " << block;
            ASSERT_LE(begin.at(store), begin.at(second));
            ASSERT_LE(end.at(second), begin.at({rank, trace::kNoBlock, Kind::kCombine}));
        }
    }
}

TEST(Trace, LaunchesAreToldApart) {
    TracedLayer layer({}, traced_options(4096), 3);
    std::set<std::uint32_t> generations;
    const Trace trace = layer.collect();
    test::expect_no_overlap(trace);
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) generations.insert(event.generation);
    }
    EXPECT_EQ(generations, (std::set<std::uint32_t>{1, 2, 3}));
}

TEST(Trace, FullBuffersAreCounted) {
    TracedLayer all({}, traced_options(4096));
    TracedLayer few({}, traced_options(3));
    const Trace trace = few.collect();
    for (const Track& track : trace.tracks) EXPECT_LE(track.events.size(), 3U);
    EXPECT_GT(trace.num_dropped(), 0U);
    std::string text;
    ASSERT_TRUE(Operator::trace_json(few.layer().all(), "few", &text).ok());
    const auto json = nlohmann::json::parse(text);
    EXPECT_EQ(json["otherData"]["dropped_events"], trace.num_dropped());
    EXPECT_EQ(json["otherData"]["events"], trace.num_events());
    EXPECT_GT(all.collect().num_events(), trace.num_events());
}

TEST(Trace, OffMeansNoEvents) {
    TracedLayer layer({}, traced_options(0));
    Trace trace;
    layer.layer().op(0).state().backend->append_trace(&trace);
    EXPECT_TRUE(trace.tracks.empty());
    std::string text = "untouched";
    const Status status = Operator::trace_json(layer.layer().all(), "off", &text);
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_NE(status.message().find("rank 0 was made with trace_events = 0"), std::string::npos)
        << status.message();
    EXPECT_EQ(text, "untouched");
    EXPECT_EQ(Operator::trace_json({}, "", &text).code(), Code::kBadInput);
    EXPECT_EQ(Operator::trace_json({nullptr}, "", &text).code(), Code::kBadInput);
}

TEST(Trace, LimitsAreRefusedByName) {
    const Shape shape = test::small_shape(1);
    std::vector<SizeEntry> sizes;
    OperatorOptions options;
    options.max_tokens = 1;
    for (const int bad : {-1, (1 << 20) + 1}) {
        options.trace_events = bad;
        const Status status = Operator::size_report(shape, options, &sizes);
        EXPECT_EQ(status.code(), Code::kBadConfig);
        EXPECT_NE(status.message().find("trace_events = " + std::to_string(bad)),
                  std::string::npos);
    }
    // Every backend records.
    options.trace_events = 1;
    options.backend = "cuda";
    EXPECT_EQ(Operator::size_report(shape, options, &sizes).code(), Code::kOk);
}

}  // namespace
}  // namespace gcmoe
