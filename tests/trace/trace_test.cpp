// The trace room alone: full buffers, the JSON a viewer gets, the summary's arithmetic.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "trace/chrome_json.hpp"
#include "trace/summary.hpp"

namespace gcmoe::trace {
namespace {

using Json = nlohmann::json;

Event event_of(Kind kind, Role role, std::uint64_t begin_ns, std::uint64_t end_ns) {
    Event event;
    event.kind = kind;
    event.role = static_cast<std::uint8_t>(role);
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    return event;
}

TEST(UnitLog, CountsWhatDoesNotFit) {
    Event events[4];
    events[3].generation = 77;  // stands past the capacity
    UnitLog log{events, 3};
    for (std::uint64_t i = 0; i < 10; ++i) {
        record(&log, event_of(Kind::kFill, Role::kDispatch, i, i + 1));
    }
    EXPECT_EQ(log.num_events, 3U);
    EXPECT_EQ(log.num_dropped, 7U);
    EXPECT_EQ(events[2].begin_ns, 2U);
    EXPECT_EQ(events[3].generation, 77U);
}

TEST(UnitLog, WithoutRoomKeepsNothing) {
    UnitLog log;
    record(&log, Event{});
    EXPECT_EQ(log.num_events, 0U);
    EXPECT_EQ(log.num_dropped, 1U);
}

// Two ranks: role 1 fills from 100 to 300 on rank 0, role 2 works from 200 to 500 there.
Trace small_trace() {
    Trace trace;
    Track dispatch{0, UnitRoles::kRole1, 0, -1, {}, 0};
    Event fill = event_of(Kind::kFill, Role::kDispatch, 100, 180);
    fill.block = 0;
    fill.expert = 3;
    dispatch.events.push_back(fill);
    Event wait = event_of(Kind::kWait, Role::kDispatch, 180, 220);
    wait.signal = static_cast<std::uint8_t>(Signal::kL1Empty);
    wait.block = 1;
    dispatch.events.push_back(wait);
    dispatch.events.push_back(event_of(Kind::kFill, Role::kDispatch, 220, 300));
    Track compute{0, UnitRoles::kRoles23, 1, -1, {}, 5};
    compute.events.push_back(event_of(Kind::kFirstGemm, Role::kCompute, 200, 400));
    Event done = event_of(Kind::kWait, Role::kCombine, 400, 1400);
    done.signal = static_cast<std::uint8_t>(Signal::kDone);
    done.peer = 1;
    compute.events.push_back(done);
    Track peer{1, UnitRoles::kRoles23, 0, -1, {}, 0};
    peer.events.push_back(event_of(Kind::kCombine, Role::kCombine, 1000, 2234567));
    trace.tracks = {dispatch, compute, peer};
    return trace;
}

TEST(ChromeJson, IsWellFormedAndExact) {
    const Json json = Json::parse(chrome_json(small_trace(), "a \"title\" \\ \n with\ttraps"));
    EXPECT_EQ(json["otherData"]["title"], "a \"title\" \\ \n with\ttraps");
    EXPECT_EQ(json["otherData"]["events"], 6);
    EXPECT_EQ(json["otherData"]["dropped_events"], 5);
    int names = 0;
    int spans = 0;
    for (const Json& event : json["traceEvents"]) {
        if (event["ph"] == "M") {
            ++names;
            EXPECT_TRUE(event["args"]["name"].is_string());
            continue;
        }
        ++spans;
        EXPECT_EQ(event["ph"], "X");
        EXPECT_GE(event["ts"].get<double>(), 0.0);
        EXPECT_GE(event["dur"].get<double>(), 0.0);
    }
    EXPECT_EQ(names, 2 + 3);  // processes and threads
    EXPECT_EQ(spans, 6);
    const Json& wait = json["traceEvents"][3 + 3];
    EXPECT_EQ(wait["name"], "wait l1_empty_count");
    EXPECT_EQ(wait["cat"], "role 1 (dispatch)");
    EXPECT_EQ(wait["args"]["block"], 1);
    EXPECT_FALSE(wait["args"].contains("peer"));
    EXPECT_DOUBLE_EQ(wait["ts"].get<double>(), 0.08);
    EXPECT_DOUBLE_EQ(wait["dur"].get<double>(), 0.04);
    const Json& last = json["traceEvents"].back();
    EXPECT_EQ(last["pid"], 1);
    EXPECT_DOUBLE_EQ(last["dur"].get<double>(), 2233.567);
}

// No two units share a thread of a viewer's process.
TEST(ChromeJson, ThreadsAreDistinct) {
    const Json json = Json::parse(chrome_json(small_trace(), "t"));
    std::vector<std::pair<int, int>> threads;
    for (const Json& event : json["traceEvents"]) {
        if (event["name"] == "thread_name") threads.emplace_back(event["pid"], event["tid"]);
    }
    std::sort(threads.begin(), threads.end());
    EXPECT_EQ(std::unique(threads.begin(), threads.end()), threads.end());
    EXPECT_EQ(threads.size(), 3U);
}

TEST(ChromeJson, OfNothing) {
    const Json json = Json::parse(chrome_json({}, ""));
    EXPECT_TRUE(json["traceEvents"].empty());
    Trace trace;
    trace.tracks.push_back({});
    EXPECT_EQ(Json::parse(chrome_json(trace, ""))["traceEvents"].size(), 2U);
}

TEST(Summary, SharesOverlapAndWaits) {
    const Summary summary = summarise(small_trace(), 1);
    ASSERT_EQ(summary.roles.size(), 3U);
    EXPECT_EQ(summary.roles[0].role, 1);
    EXPECT_EQ(summary.roles[0].num_units, 1);
    EXPECT_EQ(summary.roles[0].num_events, 3U);
    EXPECT_DOUBLE_EQ(summary.roles[0].busy, 160.0 / 200.0);
    EXPECT_DOUBLE_EQ(summary.roles[0].waiting, 40.0 / 200.0);
    EXPECT_DOUBLE_EQ(summary.roles[1].busy, 1.0);
    EXPECT_EQ(summary.roles[2].num_units, 2);
    // Rank 0 waits 1000 of 1000, rank 1 works all of its 2233567.
    EXPECT_DOUBLE_EQ(summary.roles[2].waiting, 1000.0 / (1000.0 + 2233567.0));
    EXPECT_DOUBLE_EQ(summary.overlap, 0.5);  // 200 to 300 of 100 to 300
    ASSERT_EQ(summary.longest.size(), 1U);
    EXPECT_EQ(summary.longest[0].event.peer, 1);
    EXPECT_EQ(summary.longest[0].unit, 1);
}

// A GPU's: CTAs of every role are units, warps of role 1 tracks of their unit.
Trace gpu_trace() {
    Trace trace;
    for (const int warp : {0, 1, 15}) {
        trace.tracks.push_back(
            {0, UnitRoles::kRole1, 0, warp, {event_of(Kind::kFill, Role::kDispatch, 0, 100)}, 0});
    }
    for (const UnitRoles roles : {UnitRoles::kRole2, UnitRoles::kRole3, UnitRoles::kRole4}) {
        trace.tracks.push_back(
            {0, roles, 0, -1, {event_of(Kind::kCombine, Role::kCombine, 0, 9)}, 1});
    }
    return trace;
}

TEST(ChromeJson, WarpsAndRolesAreThreadsOfTheirOwn) {
    const Json json = Json::parse(chrome_json(gpu_trace(), "t"));
    std::set<std::string> names;
    std::set<int> threads;
    for (const Json& event : json["traceEvents"]) {
        if (event["name"] != "thread_name") continue;
        names.insert(event["args"]["name"].get<std::string>());
        threads.insert(event["tid"].get<int>());
    }
    EXPECT_EQ(names, (std::set<std::string>{"role 1 unit 0 warp 0", "role 1 unit 0 warp 1",
                                            "role 1 unit 0 warp 15", "role 2 unit 0",
                                            "role 3 unit 0", "role 4 unit 0"}));
    EXPECT_EQ(threads.size(), names.size());
}

TEST(Summary, WarpsShareAUnit) {
    const Trace trace = gpu_trace();
    EXPECT_EQ(trace.num_units(), 4U);
    EXPECT_EQ(trace.num_dropped(), 3U);
    const Summary summary = summarise(trace, 0);
    EXPECT_EQ(summary.roles[0].num_units, 1);
    EXPECT_EQ(summary.roles[0].num_tracks, 3);
    EXPECT_DOUBLE_EQ(summary.roles[0].busy, 1.0);
    EXPECT_DOUBLE_EQ(summary.roles[0].unit_us, 0.3);
}

// Tasks of several units that overlap each other count once.
TEST(Summary, OverlapIsAUnion) {
    Trace trace;
    const auto add = [&trace](UnitRoles roles, int unit, const Event& event) {
        trace.tracks.push_back({0, roles, unit, -1, {event}, 0});
    };
    add(UnitRoles::kRole1, 0, event_of(Kind::kFill, Role::kDispatch, 0, 100));
    add(UnitRoles::kRoles23, 0, event_of(Kind::kFirstGemm, Role::kCompute, 10, 40));
    add(UnitRoles::kRoles23, 1, event_of(Kind::kFirstGemm, Role::kCompute, 30, 60));
    add(UnitRoles::kRoles23, 2, event_of(Kind::kWait, Role::kCompute, 0, 100));
    EXPECT_DOUBLE_EQ(summarise(trace, 0).overlap, 0.5);
    EXPECT_EQ(summarise({}, 3).roles.size(), 0U);
    EXPECT_DOUBLE_EQ(summarise({}, 3).overlap, 0.0);
}

}  // namespace
}  // namespace gcmoe::trace
