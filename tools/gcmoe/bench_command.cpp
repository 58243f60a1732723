// gcmoe bench: how long one rank takes, beside the floor of its bytes and beside copying them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench_device.hpp"
#include "bench_loop.hpp"
#include "bench_options.hpp"
#include "checkpoint/atomic_file.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "gcmoe_version.hpp"
#include "held_signals.hpp"
#include "machine.hpp"
#include "trace/chrome_json.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(Examples:
  gcmoe bench
  gcmoe bench --model v4.1-flash --tokens 1,32,256 --verify --roles
  gcmoe bench --protocol both --sustained --out points.jsonl
  gcmoe bench --model glm-5.2 --tokens 8,32 --ablation partition --out partition.jsonl
  gcmoe bench --floors-only
  gcmoe bench --loop --out loop.jsonl
One rank that holds an eighth of a model's experts, uniform routing, all roles and the graph
included. Floor: bytes of the touched experts (and of the shared one) at 4.3 TB/s. What the columns
and fields mean: docs/bench.md. Against other operators: scripts/bench_table.py.)";

BenchOrigin find_origin(const BenchOptions& options) {
    BenchOrigin origin;
    origin.date = utc_now();
    origin.driver = find_driver_version();
    const Devices devices = find_devices();
    const auto device = static_cast<std::size_t>(options.gpu.device);
    if (!options.floors_only && device < devices.found.size()) {
        origin.gpu = devices.found[device].name;
        origin.sms = devices.found[device].sms;
    }
    origin.warm = options.warm;
    origin.timed = options.timed;
    origin.flush_mib = options.flush_mib;
    return origin;
}

// The results file, under its name only once all points are in it.
class Results {
  public:
    explicit Results(const BenchOptions& options) : options_(options) {}

    // Errors: kBadInput: there is such a file, or none can be made.
    Status open() {
        const std::string& path = options_.out_path;
        if (path.empty()) return {};
        std::error_code error;
        if (!options_.force && std::filesystem::exists(path, error)) {
            return option_error("--out", path, "is there already; --force replaces it");
        }
        const Status status = checkpoint::AtomicFile::create(path, &file_);
        return status.ok() ? status : option_error("--out", path, status.message());
    }

    // One object of the results, and its line of the table.
    Status add(Json object, const std::string& table_line) {
        if (!options_.console.json) {
            fmt::print("{}\n", table_line);
            std::fflush(stdout);
        }
        if (file_ != nullptr) {
            const std::string line = object.dump() + "\n";
            GCMOE_RETURN_IF_ERROR(file_->write(line.data(), line.size()));
        }
        points_.push_back(std::move(object));
        return {};
    }

    Status close() {
        if (options_.console.json) print_json({{"points", points_}});
        return file_ == nullptr ? Status() : file_->commit();
    }

  private:
    const BenchOptions& options_;
    std::unique_ptr<checkpoint::AtomicFile> file_;
    Json points_ = Json::array();
};

void print_head(const BenchOptions& options, const BenchOrigin& origin,
                const std::string& columns) {
    if (options.console.json) return;
    fmt::print("gcmoe {} ({}), {}, driver {}, {}\n{}\n", kVersion, kCommit,
               origin.gpu.empty() ? "no GPU: floors only" : origin.gpu, origin.driver, origin.date,
               columns);
}

// With --trace: the only point's.
Status save_trace(const BenchOptions& options, const BenchPoint& point) {
    if (options.trace_path.empty()) return {};
    const std::string title = fmt::format(
        "{}, one rank, {}, seed {}", point.model,
        counted(static_cast<std::uint64_t>(point.tokens), "token"), point.chosen().seed);
    const HeldSignals held;  // the file is whole or not there
    const Status status =
        checkpoint::write_text_file(options.trace_path, trace::chrome_json(point.trace, title));
    return status.ok() ? status : option_error("--trace", options.trace_path, status.message());
}

Status measure_all(const BenchOptions& options, const BenchPlan& plan, BenchDevice* device,
                   const BenchOrigin& origin, Results* results) {
    const bool has_empty = plan.variants.front().shared != SharedForm::kFused;
    const std::size_t steps = plan.models.size() * (plan.tokens.size() + (has_empty ? 1 : 0));
    // The table's lines are progress enough, and a bar between them would be in their way.
    std::unique_ptr<ProgressBar> bar;
    if (options.console.json || options.console.progress) {
        bar = std::make_unique<ProgressBar>("points", steps, options.console.progress);
    }
    for (const checkpoint::ModelEntry& model : plan.models) {
        GCMOE_RETURN_IF_ERROR(device->open_model(model));
        for (const int tokens : plan.tokens) {
            std::vector<BenchPoint> points;
            GCMOE_RETURN_IF_ERROR(device->measure(tokens, &points));
            for (const BenchPoint& point : points) {
                GCMOE_RETURN_IF_ERROR(save_trace(options, point));
                GCMOE_RETURN_IF_ERROR(
                    results->add(point_json(point, origin), point_line(options, point)));
            }
            if (bar != nullptr) bar->advance();
        }
        if (!has_empty) continue;
        BenchPoint empty;
        GCMOE_RETURN_IF_ERROR(device->measure_empty(&empty));
        GCMOE_RETURN_IF_ERROR(results->add(point_json(empty, origin), point_line(options, empty)));
        if (bar != nullptr) bar->advance();
    }
    return {};
}

// Role 2's main loops alone: all of a model's loops, then what they ask of the operator.
Status measure_loops(const BenchPlan& plan, LoopDevice* device, const BenchOrigin& origin,
                     Results* results) {
    for (const checkpoint::ModelEntry& model : plan.models) {
        std::vector<LoopPoint> loops;
        for (const int rows : plan.loop_rows) {
            std::vector<LoopPoint> points;
            GCMOE_RETURN_IF_ERROR(device->measure(model, rows, &points));
            for (const LoopPoint& point : points) {
                GCMOE_RETURN_IF_ERROR(results->add(loop_json(point, origin), loop_line(point)));
                loops.push_back(point);
            }
        }
        for (const LoopTarget& target : loop_targets(model, plan.tokens, loops, origin.sms)) {
            GCMOE_RETURN_IF_ERROR(results->add(target_json(target, origin), target_line(target)));
        }
    }
    return {};
}

Status run_loops(const BenchOptions& options, const BenchPlan& plan) {
    std::unique_ptr<LoopDevice> device;
    GCMOE_RETURN_IF_ERROR(make_loop_device(plan, &device));
    const BenchOrigin origin = find_origin(options);
    Results results(options);
    GCMOE_RETURN_IF_ERROR(results.open());
    print_head(options, origin, loop_head());
    GCMOE_RETURN_IF_ERROR(measure_loops(plan, device.get(), origin, &results));
    return results.close();
}

Status run_bench(const BenchOptions& options) {
    BenchPlan plan;
    GCMOE_RETURN_IF_ERROR(make_bench_plan(options, &plan));
    if (plan.loop) return run_loops(options, plan);
    if (!options.floors_only) prepare_queues("cuda", options.console);
    std::unique_ptr<BenchDevice> device;
    if (options.floors_only) {
        device = make_floor_counter(plan);
    } else {
        GCMOE_RETURN_IF_ERROR(make_bench_device(plan, &device));
    }
    const BenchOrigin origin = find_origin(options);
    Results results(options);
    GCMOE_RETURN_IF_ERROR(results.open());
    print_head(options, origin, point_head(options));
    GCMOE_RETURN_IF_ERROR(measure_all(options, plan, device.get(), origin, &results));
    return results.close();
}

}  // namespace

void add_bench_command(CLI::App& app, int* exit_code) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App* bench =
        app.add_subcommand("bench", "Time one rank's launches on a GPU against their byte floor");
    bench->footer(kExamples);
    add_bench_options(*bench, options.get());
    bench->callback([options, exit_code] {
        const Status status = run_bench(*options);
        if (!status.ok()) *exit_code = report_error("bench", status, options->console.json);
    });
}

}  // namespace gcmoe::cli
