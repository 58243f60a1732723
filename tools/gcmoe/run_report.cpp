#include "run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "gpu_options.hpp"
#include "layout/local_memory.hpp"
#include "op/operator_state.hpp"
#include "plan_text.hpp"
#include "quantise_report.hpp"
#include "reference/judge.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

// How the roles of the last launch lay in time.
struct Timeline {
    LaunchTimes median;       // over the ranks on which the thing happened; -1 = on none
    int overlapped = 0;       // ranks on which role 2 began before role 1's last row
    int with_rows = 0;        // ranks that received rows
    double hidden_share = 0;  // median share of role 1's row time after role 2's first task
};

double median(std::vector<double> values) {
    if (values.empty()) return -1.0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double median_of(const std::vector<LaunchTimes>& times, double LaunchTimes::*field) {
    std::vector<double> values;
    for (const LaunchTimes& one : times) {
        if (one.*field >= 0) values.push_back(one.*field);
    }
    return median(std::move(values));
}

Timeline make_timeline(const std::vector<Statistics>& statistics) {
    std::vector<LaunchTimes> times;
    for (const Statistics& one : statistics) times.push_back(one.times);
    Timeline timeline;
    for (double LaunchTimes::*field :
         {&LaunchTimes::role1_first_row_us, &LaunchTimes::role1_last_row_us,
          &LaunchTimes::role1_end_us, &LaunchTimes::role2_first_task_us, &LaunchTimes::role2_end_us,
          &LaunchTimes::role3_begin_us, &LaunchTimes::role3_end_us}) {
        timeline.median.*field = median_of(times, field);
    }
    std::vector<double> hidden;
    for (const LaunchTimes& one : times) {
        if (one.role1_last_row_us < 0 || one.role2_first_task_us < 0) continue;
        ++timeline.with_rows;
        const double after = one.role1_last_row_us - one.role2_first_task_us;
        if (after > 0) ++timeline.overlapped;
        const double span = one.role1_last_row_us - one.role1_first_row_us;
        hidden.push_back(span > 0 ? std::clamp(after / span, 0.0, 1.0) : 0.0);
    }
    timeline.hidden_share = std::max(0.0, median(std::move(hidden)));
    return timeline;
}

// Rows per expert of one launch, all ranks: index = global expert.
std::vector<std::uint64_t> expert_rows(const std::vector<Statistics>& statistics, int launches) {
    std::vector<std::uint64_t> rows;
    for (const Statistics& one : statistics) {
        for (const std::uint64_t sum : one.expert_rows) {
            rows.push_back(sum / static_cast<std::uint64_t>(launches));
        }
    }
    return rows;
}

// The expert with the most and, among those touched, the fewest rows.
struct Load {
    int most = -1;
    int least = -1;
    std::uint64_t most_rows = 0;
    std::uint64_t least_rows = 0;
};

Load find_load(const std::vector<std::uint64_t>& rows, const std::vector<int>& touched) {
    Load load;
    for (const int expert : touched) {
        const std::uint64_t count = rows[static_cast<std::size_t>(expert)];
        if (load.most < 0 || count > load.most_rows) {
            load.most = expert;
            load.most_rows = count;
        }
        if (load.least < 0 || count < load.least_rows) {
            load.least = expert;
            load.least_rows = count;
        }
    }
    return load;
}

// One number, or its range over the ranks.
template <class Field>
std::string range_text(const std::vector<Statistics>& statistics, const Field& field) {
    std::uint64_t least = field(statistics.front());
    std::uint64_t most = least;
    for (const Statistics& one : statistics) {
        least = std::min(least, field(one));
        most = std::max(most, field(one));
    }
    return least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
}

std::string us_text(double us) { return us < 0 ? "never" : fmt::format("{:.0f}", us); }

std::string tokens_text(const LayerRun& run) {
    const auto less = [](const RankInputs& a, const RankInputs& b) {
        return a.num_tokens < b.num_tokens;
    };
    const auto [least, most] = std::minmax_element(run.inputs.begin(), run.inputs.end(), less);
    if (least->num_tokens == most->num_tokens) {
        return fmt::format("{} a rank, {} in all", least->num_tokens, run.num_tokens);
    }
    return fmt::format("{} to {} a rank, {} in all", least->num_tokens, most->num_tokens,
                       run.num_tokens);
}

std::string shape_text(const Layer& layer) {
    const Shape& shape = layer.shape;
    const auto padded = [](int model, int wide) {
        return model == wide ? fmt::format("{}", model)
                             : fmt::format("{} (padded to {})", model, wide);
    };
    std::string text =
        fmt::format("hidden {}, inter {}, {} experts, top {}", padded(layer.hidden, shape.hidden),
                    padded(layer.inter, shape.inter), shape.num_experts, shape.topk);
    text += shape.shared_inter > 0 ? fmt::format(", shared {}", shape.shared_inter)
                                   : std::string(", no shared expert");
    if (std::isfinite(shape.activation.clamp)) {
        text += fmt::format(", clamp {}", shape.activation.clamp);
    }
    return text + (shape.has_bias ? ", biases" : "");
}

// Where a GPU's units are; nothing on the CPU, or where launches have no partitions.
std::optional<std::string> placement_of(const LayerRun& run) {
    const OperatorState& state = run.ops.front()->state();
    const OperatorOptions& options = state.options;
    if (options.backend != "cuda" || options.launch_mode == LaunchMode::kSerial) return {};
    return placement_name(state.plans.front().placement);
}

std::string placement_text(const LayerRun& run) {
    const std::optional<std::string> name = placement_of(run);
    return name ? fmt::format(" ({})", *name) : std::string();
}

// The first plan of the operators that ran.
PlanReport plan_of(const LayerRun& run) {
    const OperatorState& state = run.ops.front()->state();
    return state.sources.front().report(state.plans.front());
}

void print_sizes(const RunOptions& options, const LayerRun& run) {
    const Shape& shape = run.layer.shape;
    const layout::PlanMemory& plan = run.ops.front()->state().plans.front().memory;
    fmt::print("{}: {}\n", run.layer.title, shape_text(run.layer));
    fmt::print("{}, tokens {}; {} in use, {} of {} experts touched\n",
               counted(static_cast<std::uint64_t>(shape.num_ranks), "rank"), tokens_text(run),
               counted(static_cast<std::uint64_t>(run.num_slots), "slot"), run.touched.size(),
               shape.num_experts);
    fmt::print("weights: {} of touched experts as MXFP4, {} packed on all ranks\n",
               bytes_text(run.touched_bytes),
               bytes_text(static_cast<std::uint64_t>(run.packed.packed_bytes)));
    if (run.layer.quantised != nullptr) print_quantise_report(*run.layer.quantised);
    if (run.packed.num_changed_values > 0) {
        fmt::print("weights: NOT exact: {} rounded, the worst by {:.3g} of its row's maximum\n",
                   counted(static_cast<std::uint64_t>(run.packed.num_changed_values), "value"),
                   run.packed.worst_change);
    }
    fmt::print("{}, {}{}: {} + {} units a rank{}, {} rows a block, ring of {}\n", options.backend,
               options.executor, options.processes.is_rank() ? ", ranks as processes" : "",
               plan.dispatch_units, plan.compute_units, placement_text(run), plan.row_block,
               counted(plan.ring_blocks, "block"));
    if (options.backend == "cpu") return;
    const PlanReport report = plan_of(run);
    fmt::print("plan: {}\ntuned: {}\n", plan_text(report), report.tuned);
}

void print_times(const RunOptions& options, const LayerRun& run,
                 const std::vector<Statistics>& statistics) {
    const Timeline timeline = make_timeline(statistics);
    const LaunchTimes& times = timeline.median;
    fmt::print("\nlaunch{} {:.3f} s; median over ranks, microseconds after role 1 began:\n",
               options.launches > 1 ? fmt::format(" {} of {}", options.launches, options.launches)
                                    : std::string(),
               run.launch_s);
    Table table({"", "begin", "end"});
    table.add({"role 1 dispatch (rows)", us_text(times.role1_first_row_us),
               us_text(times.role1_last_row_us)});
    table.add({"role 2 experts", us_text(times.role2_first_task_us), us_text(times.role2_end_us)});
    table.add({"role 3 combine", us_text(times.role3_begin_us), us_text(times.role3_end_us)});
    fmt::print("{}", table.text(1));
    fmt::print(
        "overlap: {}; role 2 began before role 1's last row on {} of {} ranks with rows, "
        "{:.0f} % of role 1's rows hidden\n",
        options.plan.overlap ? "on" : "off", timeline.overlapped, timeline.with_rows,
        100.0 * timeline.hidden_share);
    const auto launches = static_cast<std::uint64_t>(options.launches);
    fmt::print("ring: {} blocks a rank and launch, {} laps\n",
               range_text(statistics, [&](const Statistics& s) { return s.blocks / launches; }),
               range_text(statistics, [](const Statistics& s) { return s.laps; }));
    const Load load = find_load(expert_rows(statistics, options.launches), run.touched);
    if (load.most < 0) return;
    fmt::print("load: expert {} has most ({}), expert {} fewest ({}) of those touched\n", load.most,
               counted(load.most_rows, "row"), load.least, counted(load.least_rows, "row"));
}

void print_verdict(const Verdict& verdict) {
    if (verdict.judged && verdict.has_error) {
        const bool usual = verdict.max_rel_l2 == reference::kMaxRelL2;
        const std::string limit = usual ? fmt::format("{:.0e}", verdict.max_rel_l2)
                                        : fmt::format("{:.2e}: sums cancel", verdict.max_rel_l2);
        fmt::print(
            "error: relative L2 {:.2e} (limit {}), cosine {:.8f} (limit {:.5g}){}, largest "
            "rounding error {:.4f} of its bound\n",
            verdict.worst_rel_l2, limit, verdict.min_cosine, verdict.least_cosine,
            verdict.whole_judged ? "" : " not judged in a scale case", verdict.worst_stage_error);
    } else if (verdict.judged) {
        fmt::print("error: none to measure, no live token\n");
    }
    if (verdict.verified) {
        fmt::print("verified\n");
    } else {
        fmt::print("NOT verified: {}\n", verdict.reason);
    }
}

Json number_or_null(bool there, double value) {
    return there && std::isfinite(value) ? Json(value) : Json();
}

Json roles_json(const Timeline& timeline) {
    const LaunchTimes& times = timeline.median;
    const auto us = [](double value) { return number_or_null(value >= 0, value); };
    return {{"role1_first_row_us", us(times.role1_first_row_us)},
            {"role1_last_row_us", us(times.role1_last_row_us)},
            {"role1_end_us", us(times.role1_end_us)},
            {"role2_first_task_us", us(times.role2_first_task_us)},
            {"role2_end_us", us(times.role2_end_us)},
            {"role3_begin_us", us(times.role3_begin_us)},
            {"role3_end_us", us(times.role3_end_us)}};
}

Json overlap_json(const RunOptions& options, const Timeline& timeline) {
    return {{"on", options.plan.overlap},
            {"ranks_overlapped", timeline.overlapped},
            {"ranks_with_rows", timeline.with_rows},
            {"hidden_share", timeline.hidden_share}};
}

Json shape_json(const Layer& layer) {
    const Shape& shape = layer.shape;
    return {{"title", layer.title}, {"hidden", layer.hidden},
            {"inter", layer.inter}, {"experts", shape.num_experts},
            {"topk", shape.topk},   {"shared_inter", shape.shared_inter}};
}

Json verdict_json(const Verdict& verdict) {
    const bool has_error = verdict.judged && verdict.has_error;
    return {{"verified", verdict.verified},
            {"reason", verdict.verified ? Json() : Json(verdict.reason)},
            {"worst_rel_l2", number_or_null(has_error, verdict.worst_rel_l2)},
            {"min_cosine", number_or_null(has_error, verdict.min_cosine)},
            {"worst_stage_error", number_or_null(verdict.judged, verdict.worst_stage_error)},
            {"plain_rel_l2", number_or_null(has_error, verdict.plain_rel_l2)}};
}

}  // namespace

void print_run_report(const RunOptions& options, const LayerRun& run, const Verdict& verdict,
                      double seconds) {
    const std::vector<Statistics>& statistics = run.statistics;
    print_sizes(options, run);
    print_times(options, run, statistics);
    fmt::print("seconds: {:.1f} in all\n", seconds);
    print_verdict(verdict);
}

void print_run_json(const RunOptions& options, const LayerRun& run, const Verdict& verdict,
                    double seconds, const trace::Trace& trace) {
    const std::vector<Statistics>& statistics = run.statistics;
    const Timeline timeline = make_timeline(statistics);
    std::uint64_t laps = 0;
    std::uint64_t blocks = 0;
    for (const Statistics& one : statistics) {
        laps = std::max(laps, one.laps);
        blocks += one.blocks;
    }
    Json object = verdict_json(verdict);
    object["tokens"] = run.num_tokens;
    object["ranks"] = run.layer.shape.num_ranks;
    object["slots"] = run.num_slots;
    object["experts_touched"] = run.touched.size();
    object["bytes"] = run.touched_bytes;
    object["packed_bytes"] = run.packed.packed_bytes;
    object["changed_values"] = run.packed.num_changed_values;
    if (run.layer.quantised != nullptr) object["quantised"] = quantise_json(*run.layer.quantised);
    object["seconds"] = seconds;
    object["launch_seconds"] = run.launch_s;
    object["launches"] = options.launches;
    object["model"] = shape_json(run.layer);
    object["backend"] = options.backend;
    object["executor"] = options.executor;
    const std::optional<std::string> placement = placement_of(run);
    object["placement"] = placement ? Json(*placement) : Json();
    object["processes"] = options.processes.is_rank() ? run.layer.shape.num_ranks : 1;
    object["roles"] = roles_json(timeline);
    object["overlap"] = overlap_json(options, timeline);
    object["plan"] = plan_json(plan_of(run));
    object["ring"] = {{"blocks", blocks}, {"laps", laps}};
    if (!options.trace_path.empty()) {
        object["trace"] = {{"file", options.trace_path},
                           {"events", trace.num_events()},
                           {"dropped_events", trace.num_dropped()}};
    }
    object["expert_rows"] = expert_rows(statistics, options.launches);
    print_json(object);
}

void print_rank_report(const RunOptions& options, const LayerRun& run) {
    const int rank = run.own_ranks.front();
    const int num_tokens = run.inputs[static_cast<std::size_t>(rank)].num_tokens;
    if (options.console.json) {
        print_json({{"rank", rank},
                    {"ranks", run.layer.shape.num_ranks},
                    {"tokens", num_tokens},
                    {"launches", options.launches},
                    {"handed_over", true}});
        return;
    }
    fmt::print("rank {} of {}: {} of {}, handed to rank 0\n", rank, run.layer.shape.num_ranks,
               counted(static_cast<std::uint64_t>(options.launches), "launch"),
               counted(static_cast<std::uint64_t>(num_tokens), "token"));
    for (const auto& [option, path] : {std::pair{"--out", &options.out_path},
                                       std::pair{"--save-inputs", &options.save_inputs_path}}) {
        if (path->empty()) continue;
        fmt::print("{} {}: not written by rank {}; rank 0 writes its own\n", option, *path, rank);
    }
}

}  // namespace gcmoe::cli
