// gcmoe tune: which plan is the fastest for a layer and a number of tokens, as a table that plans
// read.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "base/math.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "gcmoe_version.hpp"
#include "machine.hpp"
#include "tune_device.hpp"
#include "tune_options.hpp"
#include "tune_table.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(Examples:
  gcmoe tune --out tuned.jsonl
  gcmoe tune --model v4-flash --tokens 1,8,64 --budget-s 60 --out tuned.jsonl
  gcmoe tune --model v4-flash --hidden 4096 --inter 1024 --experts 64 --topk 8 --out mine.jsonl
  gcmoe tune --candidates-only --model glm-5.2 --tokens 128
  gcmoe tune --derive h200.jsonl --gpu "NVIDIA H20" --sms 78 --out h20.jsonl
  gcmoe run --tuned tuned.jsonl ...
One rank with the GPU for itself. The format, the search, and what plans do with a table:
docs/tune.md.)";

// The table's head as far as the machine says it.
void describe_machine(const TunePlan& plan, plan::TunedTable* table) {
    const Devices devices = find_devices();
    const std::size_t device = size_of(plan.bench.device);
    if (device < devices.found.size()) {
        table->gpu = devices.found[device].name;
        table->sms = devices.found[device].sms;
    }
    table->driver = find_driver_version();
    table->commit = kCommit;
    table->date = utc_now();
    table->warm = plan.bench.warm;
    table->timed = plan.bench.timed;
    table->flush_mib = static_cast<int>(plan.bench.flush_bytes >> 20);
    table->seeds.resize(size_of(plan.bench.seeds));
    std::iota(table->seeds.begin(), table->seeds.end(), 0);
    table->threshold_percent = plan.threshold_percent;
}

std::string counts_text(const plan::TunedCounts& counts) {
    return fmt::format(
        "{} candidates: {} invalid, {} the same as others, {} dominated, {} left out for time, {} "
        "measured",
        counts.generated, counts.invalid, counts.duplicate, counts.dominated, counts.budget,
        counts.measured);
}

Json counts_json(const plan::TunedCounts& counts) {
    return {{"generated", counts.generated}, {"invalid", counts.invalid},
            {"duplicate", counts.duplicate}, {"dominated", counts.dominated},
            {"budget", counts.budget},       {"measured", counts.measured},
            {"finalists", counts.finalists}};
}

double percent_faster(double us, double than_us) { return 100 * (1 - us / than_us); }

void print_point(const std::string& title, const TunedPoint& point) {
    fmt::print("{}: {}\n", title, counts_text(point.counts));
    const double rules_us = point.finalists.front().median_us;
    for (std::size_t i = 0; i < point.finalists.size(); ++i) {
        const Finalist& finalist = point.finalists[i];
        fmt::print("  {:8.1f} us {:+6.1f} %  {}{}\n", finalist.median_us,
                   100 * (finalist.median_us / rules_us - 1), i == 0 ? "rules: " : "",
                   candidate_text(finalist.candidate));
    }
    fmt::print(
        "  on other routings: best {:.1f} us, rules {:.1f} us, gain {:.1f} %: {}; launch {}\n",
        point.best_us, point.rules_us, percent_faster(point.best_us, point.rules_us),
        point.keeps_rules ? "the rules' plan stays" : candidate_text(point.chosen),
        plan::launch_word(point.launch));
    std::fflush(stdout);
}

Json point_json(const std::string& model, int tokens, const TunedPoint& point) {
    Json finalists = Json::array();
    for (const Finalist& finalist : point.finalists) {
        finalists.push_back({{"plan", candidate_text(finalist.candidate)},
                             {"launch", plan::launch_word(finalist.candidate.launch_mode)},
                             {"median_us", finalist.median_us}});
    }
    return {{"model", model},
            {"tokens", tokens},
            {"candidates", counts_json(point.counts)},
            {"finalists", finalists},
            {"keeps_rules", point.keeps_rules},
            {"chosen", candidate_text(point.chosen)},
            {"chosen_us", point.chosen_us},
            {"rules_us", point.rules_us},
            {"best_us", point.best_us},
            {"launch", plan::launch_word(point.launch)}};
}

plan::TunedEntry entry_of(const checkpoint::ModelEntry& model, const TuneSite& site, int from,
                          const TunedPoint& point) {
    plan::TunedEntry entry;
    entry.model = model.name;
    entry.layer = plan::tuned_layer(site.shape);
    entry.from = from;
    entry.to = site.tokens;
    entry.tokens = site.tokens;
    if (!point.keeps_rules) entry.options = point.chosen.plan;
    entry.launch = point.launch;
    entry.median_us = point.chosen_us;
    entry.default_us = point.rules_us;
    entry.counts = point.counts;
    return entry;
}

// All points of a run, one after the other.
class Tuning {
  public:
    Tuning(const TuneOptions& options, const TunePlan& plan, TuneDevice* device)
        : options_(options), plan_(plan), device_(device), begin_(Clock::now()) {
        describe_machine(plan, &table_);
        points_left_ = plan.bench.models.size() * plan.bench.tokens.size();
    }

    Status run() {
        for (const checkpoint::ModelEntry& model : plan_.bench.models) {
            GCMOE_RETURN_IF_ERROR(device_->open_model(model));
            int from = 1;
            for (const int tokens : plan_.bench.tokens) {
                if (seconds() > plan_.budget_s) {
                    left_out_.push_back(fmt::format("{} at {} tokens", model.name, tokens));
                    continue;
                }
                GCMOE_RETURN_IF_ERROR(tune(model, from, tokens));
                from = tokens + 1;
            }
        }
        return {};
    }

    [[nodiscard]] const plan::TunedTable& table() const { return table_; }
    [[nodiscard]] const Json& points() const { return points_; }
    // Points that the budget had no seconds for.
    [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(Clock::now() - begin_).count();
    }

  private:
    using Clock = std::chrono::steady_clock;

    Status tune(const checkpoint::ModelEntry& model, int from, int tokens) {
        TuneSite site;
        GCMOE_RETURN_IF_ERROR(make_tune_site(plan_.bench, model, tokens, table_.sms, &site));
        TuneLimits limits;
        limits.seeds = plan_.bench.seeds;
        limits.warm = plan_.bench.warm;
        limits.timed = plan_.bench.timed;
        limits.threshold_percent = plan_.threshold_percent;
        limits.seconds = (plan_.budget_s - seconds()) / static_cast<double>(points_left_--);
        limits.now = [this] { return seconds(); };
        TunedPoint point;
        GCMOE_RETURN_IF_ERROR(tune_point(device_, site, limits, &point));
        table_.entries.push_back(entry_of(model, site, from, point));
        points_.push_back(point_json(model.name, tokens, point));
        if (!options_.bench.console.json) {
            print_point(
                fmt::format("{}, {} ({:.0f} s)", model.name,
                            counted(static_cast<std::uint64_t>(tokens), "token"), seconds()),
                point);
        }
        return {};
    }

    const TuneOptions& options_;
    const TunePlan& plan_;
    TuneDevice* device_;
    Clock::time_point begin_;
    std::size_t points_left_ = 0;
    plan::TunedTable table_;
    Json points_ = Json::array();
    std::vector<std::string> left_out_;
};

Status search(const TuneOptions& options, const TunePlan& plan, int* exit_code) {
    const bool json = options.bench.console.json;
    prepare_queues("cuda", options.bench.console);
    std::unique_ptr<TuneDevice> device;
    GCMOE_RETURN_IF_ERROR(make_tune_device(plan.bench, &device));
    TunedFile file;
    GCMOE_RETURN_IF_ERROR(file.open(options.bench.out_path, options.bench.force));
    Tuning tuning(options, plan, device.get());
    const plan::TunedTable& table = tuning.table();
    if (!json) {
        fmt::print("gcmoe {} ({}), {}, {} SMs, driver {}, {}\n", kVersion, kCommit, table.gpu,
                   table.sms, table.driver, table.date);
    }
    GCMOE_RETURN_IF_ERROR(tuning.run());
    GCMOE_RETURN_IF_ERROR(file.write(table));
    if (json) {
        print_json({{"points", tuning.points()},
                    {"left_out", tuning.left_out()},
                    {"seconds", tuning.seconds()}});
    } else {
        fmt::print("{} in {:.0f} s\n", counted(table.entries.size(), "point"), tuning.seconds());
    }
    if (tuning.left_out().empty()) return {};
    print_error("tune", fmt::format("--budget-s {}: no time was left for {}", plan.budget_s,
                                    joined(tuning.left_out())));
    *exit_code = kExitFailed;
    return {};
}

// What a search would begin with: the grid, and rings and leads around the rules' plan.
Status list_candidates(const TuneOptions& options, const TunePlan& plan) {
    Json points = Json::array();
    for (const checkpoint::ModelEntry& model : plan.bench.models) {
        for (const int tokens : plan.bench.tokens) {
            TuneSite site;
            GCMOE_RETURN_IF_ERROR(make_tune_site(plan.bench, model, tokens, plan.sms, &site));
            CandidateList list(site);
            if (Status status = list.add_rules(); !status.ok()) {
                return option_error("--sms", std::to_string(plan.sms), status.message());
            }
            const PlanOptions rules = list.kept().front().plan;
            list.add_grid();
            list.add_variations(rules);
            list.add_launch_modes(rules);
            Json kept = Json::array();
            for (const Candidate& one : list.kept()) kept.push_back(candidate_text(one));
            if (!options.bench.console.json) {
                fmt::print("{}, {}: {}\n", model.name,
                           counted(static_cast<std::uint64_t>(tokens), "token"),
                           counts_text(list.counts()));
                for (const Candidate& one : list.kept()) fmt::print("  {}\n", candidate_text(one));
            }
            points.push_back({{"model", model.name},
                              {"tokens", tokens},
                              {"candidates", counts_json(list.counts())},
                              {"kept", kept}});
        }
    }
    if (options.bench.console.json) print_json({{"points", points}});
    return {};
}

Status derive(const TuneOptions& options) {
    plan::TunedTable from;
    if (Status status = plan::read_tuned_table(options.derive_path, &from); !status.ok()) {
        return option_error("--derive", options.derive_path, status.message());
    }
    if (from.is_derived()) {
        return option_error("--derive", options.derive_path, "is itself derived, not measured");
    }
    plan::TunedTable table;
    if (Status status = plan::derive_table(from, options.gpu_name, *options.sms, &table);
        !status.ok()) {
        return option_error("--sms", std::to_string(*options.sms), status.message());
    }
    TunedFile file;
    GCMOE_RETURN_IF_ERROR(file.open(options.bench.out_path, options.bench.force));
    GCMOE_RETURN_IF_ERROR(file.write(table));
    if (options.bench.console.json) {
        print_json({{"entries", table.entries.size()}, {"derived_from", table.derived_from}});
    } else {
        fmt::print("{} for {}, {} SMs: derived from {}, not measured\n",
                   counted(table.entries.size(), "point"), table.gpu, table.sms,
                   table.derived_from);
    }
    return {};
}

Status run_tune(const TuneOptions& options, int* exit_code) {
    TunePlan plan;
    GCMOE_RETURN_IF_ERROR(make_tune_plan(options, &plan));
    if (!options.derive_path.empty()) return derive(options);
    if (options.candidates_only) return list_candidates(options, plan);
    return search(options, plan, exit_code);
}

}  // namespace

void add_tune_command(CLI::App& app, int* exit_code) {
    auto options = std::make_shared<TuneOptions>();
    CLI::App* tune = app.add_subcommand(
        "tune", "Search for the fastest plans on a GPU, and write them as a table that plans read");
    tune->footer(kExamples);
    add_tune_options(*tune, options.get());
    tune->callback([options, exit_code] {
        const Status status = run_tune(*options, exit_code);
        if (!status.ok()) *exit_code = report_error("tune", status, options->bench.console.json);
    });
}

}  // namespace gcmoe::cli
