#include "bench_point.hpp"

#include <fmt/format.h>

#include <cmath>

#include "gcmoe_version.hpp"
#include "plan/tuned_table.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

// Three digits: the GPU's events do not resolve a nanosecond.
double rounded(double value) { return std::round(value * 1e3) / 1e3; }

Json number(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

// value / floor, or nothing where either is not there.
std::optional<double> ratio(const std::optional<double>& value, double floor) {
    if (!value || floor <= 0) return {};
    return *value / floor;
}

Json config_json(const BenchPoint& point) {
    Json config = {{"launch", plan::launch_word(point.launch_mode)},
                   {"shared", shared_form_name(point.shared)},
                   {"closing", closing_name(point.closing)},
                   {"decode", decode_name(point.decode)}};
    if (!point.plan) return config;
    const GrantedPlan& granted = *point.plan;
    config["dispatch_units"] = granted.dispatch_units;
    config["compute_units"] = granted.compute_units;
    config["row_block"] = granted.row_block;
    config["ring_blocks"] = granted.ring_blocks;
    config["lead_blocks"] = granted.lead_blocks;
    config["second_columns"] = granted.second_columns;
    config["overlap"] = granted.overlap;
    config["placement"] = placement_name(granted.placement);
    config["combine"] = plan::combine_word(granted.combine_on);
    config["role4"] = granted.role4;
    config["placement_holds"] = granted.placement_holds;
    config["tuned"] = granted.tuned;
    return config;
}

Json seeds_json(const BenchPoint& point) {
    Json seeds = Json::array();
    for (const BenchSeed& seed : point.seeds) {
        seeds.push_back({{"seed", seed.seed},
                         {"touched", seed.touched},
                         {"median_us", number(seed.median_us)},
                         {"min_us", number(seed.min_us)},
                         {"copy_us", number(seed.copy_us)}});
    }
    return seeds;
}

Json times_json(const LaunchTimes& times) {
    const auto time = [](double us) { return us < 0 ? Json() : Json(rounded(us)); };
    return {{"first_row", time(times.role1_first_row_us)},
            {"first_task", time(times.role2_first_task_us)},
            {"role1_end", time(times.role1_end_us)},
            {"role2_end", time(times.role2_end_us)},
            {"role3_begin", time(times.role3_begin_us)},
            {"role3_end", time(times.role3_end_us)}};
}

void add_rates(const BenchPoint& point, Json* object) {
    const std::optional<double> us = point.rated_us();
    const double nibbles = point.chosen().touched * expert_weights(point.shape) * kNibbleBytes;
    const double whole = point.chosen().touched * expert_bytes(point.shape);
    const bool has = us && !point.masked;
    (*object)["tflops"] = has ? Json(rounded(tflops(point.shape, point.num_slots(), *us))) : Json();
    (*object)["working_set_gb_s"] = has ? Json(rounded(gb_per_s(nibbles, *us))) : Json();
    (*object)["working_set_with_scales_gb_s"] = has ? Json(rounded(gb_per_s(whole, *us))) : Json();
}

std::string cell(const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

constexpr const char* kPointFormat =
    "{:<11} {:<20} {:>6} {:>7} {:>8} {:>8} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}";
constexpr const char* kRolesFormat = " {:>7} {:>7} {:>7} {:>7} {:>7}";

}  // namespace

double BenchPoint::mean_floor_us() const {
    std::vector<double> floors;
    for (const BenchSeed& seed : seeds) {
        floors.push_back(floor_us(seed.touched * expert_bytes(shape)) + shared_floor_us());
    }
    return mean(floors);
}

Json point_json(const BenchPoint& point, const BenchOrigin& origin) {
    const BenchSeed& seed = point.chosen();
    Json object = {{"kind", point.masked ? "empty" : "layer"},
                   {"model", point.model},
                   {"variant", point.variant},
                   {"ablation", point.ablation.empty() ? Json() : Json(point.ablation)},
                   {"tokens", point.tokens},
                   {"experts", point.shape.num_experts},
                   {"topk", point.shape.topk},
                   {"hidden", point.shape.hidden},
                   {"inter", point.shape.inter},
                   {"shared_inter", point.shape.shared_inter},
                   {"num_seeds", point.seeds.size()},
                   {"touched", seed.touched},
                   {"floor_us", rounded(point.routed_floor_us())},
                   {"shared_floor_us", rounded(point.shared_floor_us())},
                   {"median_us", number(seed.median_us)},
                   {"min_us", number(seed.min_us)},
                   {"ratio", number(ratio(seed.median_us, point.whole_floor_us()))},
                   {"copy_us", number(seed.copy_us)},
                   {"paper_us", number(point.paper_us)},
                   {"burst_us", number(point.burst_us)},
                   {"sustained_us", number(point.sustained_us)},
                   {"sustained_ratio", number(ratio(point.sustained_us, point.mean_floor_us()))}};
    add_rates(point, &object);
    object["verified"] = point.verified;
    object["seeds"] = seeds_json(point);
    object["config"] = config_json(point);
    object["role_times_us"] = times_json(point.times);
    object["warm"] = origin.warm;
    object["timed"] = origin.timed;
    object["flush_mib"] = origin.flush_mib;
    object["version"] = kVersion;
    object["commit"] = kCommit;
    object["gpu"] = origin.gpu;
    object["sms"] = origin.sms;
    object["driver"] = origin.driver;
    object["date"] = origin.date;
    return object;
}

std::string point_head(const BenchOptions& options) {
    std::string head = fmt::format(kPointFormat, "model", "variant", "tokens", "experts", "us",
                                   "min us", "floor us", "ratio", "copy us", "paper us", "burst us",
                                   "sust us", "TFLOPS", "GB/s");
    if (options.roles) {
        head += fmt::format(kRolesFormat, "row 1", "task 1", "role 1", "role 2", "role 3");
    }
    return head;
}

std::string point_line(const BenchOptions& options, const BenchPoint& point) {
    const BenchSeed& seed = point.chosen();
    const std::optional<double> us = point.rated_us();
    std::optional<double> rate;
    std::optional<double> bandwidth;
    if (us && !point.masked) {
        rate = tflops(point.shape, point.num_slots(), *us);
        bandwidth = gb_per_s(seed.touched * expert_weights(point.shape) * kNibbleBytes, *us);
    }
    std::string line = fmt::format(
        kPointFormat, point.model, point.masked ? "empty launch" : point.variant, point.tokens,
        seed.touched, cell(seed.median_us, 1), cell(seed.min_us, 1),
        cell(point.whole_floor_us(), 1), cell(ratio(seed.median_us, point.whole_floor_us()), 2),
        cell(seed.copy_us, 1), cell(point.paper_us, 1), cell(point.burst_us, 1),
        cell(point.sustained_us, 1), cell(rate, 1), cell(bandwidth, 0));
    if (options.roles) {
        const LaunchTimes& t = point.times;
        const auto time = [](double value) {
            return value < 0 ? "-" : fmt::format("{:.1f}", value);
        };
        line += fmt::format(kRolesFormat, time(t.role1_first_row_us), time(t.role2_first_task_us),
                            time(t.role1_end_us), time(t.role2_end_us), time(t.role3_end_us));
    }
    return line;
}

}  // namespace gcmoe::cli
