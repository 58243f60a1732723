// One measured point, and its line of a results file (docs/bench.md).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench_figures.hpp"
#include "bench_options.hpp"
#include "gcmoe/operator.hpp"
#include "layout/local_memory.hpp"
#include "trace/trace.hpp"

namespace gcmoe::cli {

// One routing.
struct BenchSeed {
    int seed = 0;
    int touched = 0;  // experts with rows
    // Not measured: empty.
    std::optional<double> median_us;
    std::optional<double> min_us;
    std::optional<double> copy_us;  // the same bytes, only copied
};

// What the plan granted, and where the units ran.
struct GrantedPlan {
    int dispatch_units = 0;
    int compute_units = 0;
    int row_block = 0;
    int ring_blocks = 0;
    int lead_blocks = 0;
    int second_columns = 0;
    bool overlap = true;
    SmPlacement placement = SmPlacement::kBalanced;
    layout::CombineOn combine_on = layout::CombineOn::kCompute;
    bool role4 = false;
    bool placement_holds = false;
    std::string tuned;  // the table's entry that made it, or why none did
};

struct BenchPoint {
    std::string model;
    std::string variant;
    std::string ablation;  // empty: none
    Shape shape;           // with shared_inter where the shared expert is a part of the point
    SharedForm shared = SharedForm::kNone;
    LaunchMode launch_mode = LaunchMode::kGraph;
    Closing closing = Closing::kNone;
    DecodeForm decode = DecodeForm::kRowFactors;
    int tokens = 0;
    bool masked = false;  // every slot unused: the empty launch
    bool verified = false;
    std::vector<BenchSeed> seeds;
    std::size_t median_seed = 0;  // the one that speaks for the point: index in seeds
    std::optional<double> paper_us;
    std::optional<double> burst_us;
    std::optional<double> sustained_us;
    std::optional<GrantedPlan> plan;
    LaunchTimes times;   // of the last launch of the median seed
    trace::Trace trace;  // of all its launches, if the variant records

    // Makes it the empty launch, for which one seed is as good as another.
    void mask() {
        masked = true;
        seeds.resize(1);
    }
    [[nodiscard]] const BenchSeed& chosen() const { return seeds[median_seed]; }
    // Time that rates are worked out from: the paper's protocol where it was run.
    [[nodiscard]] std::optional<double> rated_us() const {
        return paper_us ? paper_us : chosen().median_us;
    }
    [[nodiscard]] double routed_floor_us() const {
        return floor_us(chosen().touched * expert_bytes(shape));
    }
    [[nodiscard]] double shared_floor_us() const { return floor_us(shared_bytes(shape)); }
    [[nodiscard]] double whole_floor_us() const { return routed_floor_us() + shared_floor_us(); }
    // Of the floors of all seeds: what launches of every routing in turn have to read.
    [[nodiscard]] double mean_floor_us() const;
    [[nodiscard]] std::int64_t num_slots() const {
        return masked ? 0 : std::int64_t{tokens} * shape.topk;
    }
};

// What all points of a run share.
struct BenchOrigin {
    std::string gpu;  // name of the device
    int sms = 0;
    std::string driver;  // version, "unknown" if the system does not say
    std::string date;    // UTC, "2026-12-01T09:30:00Z"
    int warm = 0;
    int timed = 0;
    int flush_mib = 0;
};

// Fields in the order of docs/bench.md; what was not measured is null.
[[nodiscard]] nlohmann::ordered_json point_json(const BenchPoint& point, const BenchOrigin& origin);

// The table for people: its head, and a point's line.
[[nodiscard]] std::string point_head(const BenchOptions& options);
[[nodiscard]] std::string point_line(const BenchOptions& options, const BenchPoint& point);

}  // namespace gcmoe::cli
