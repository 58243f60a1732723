// gcmoe bench: how long one rank takes, beside the floor of its bytes and beside copying them.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <memory>

#include "bench_device.hpp"
#include "bench_options.hpp"
#include "checkpoint/atomic_file.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "gcmoe_version.hpp"
#include "machine.hpp"

namespace gcmoe::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples = R"(Examples:
  gcmoe bench
  gcmoe bench --model v4.1-flash --tokens 1,32,256 --verify --roles
  gcmoe bench --protocol both --sustained --out points.jsonl
  gcmoe bench --model glm-5.2 --tokens 8,32 --ablation partition --out partition.jsonl
  gcmoe bench --floors-only
One rank that holds an eighth of a model's experts, uniform routing, all roles and the graph
included. Floor: bytes of the touched experts (and of the shared one) at 4.3 TB/s. What the columns
and fields mean: docs/bench.md. Against other operators: scripts/bench_table.py.)";

std::string utc_now() {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

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
    Results(const BenchOptions& options, BenchOrigin origin)
        : options_(options), origin_(std::move(origin)) {}

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

    Status add(const BenchPoint& point) {
        Json object = point_json(point, origin_);
        if (!options_.console.json) {
            fmt::print("{}\n", point_line(options_, point));
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
    BenchOrigin origin_;
    std::unique_ptr<checkpoint::AtomicFile> file_;
    Json points_ = Json::array();
};

Status measure_all(const BenchOptions& options, const BenchPlan& plan, BenchDevice* device,
                   Results* results) {
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
            for (const BenchPoint& point : points) GCMOE_RETURN_IF_ERROR(results->add(point));
            if (bar != nullptr) bar->advance();
        }
        if (!has_empty) continue;
        BenchPoint empty;
        GCMOE_RETURN_IF_ERROR(device->measure_empty(&empty));
        GCMOE_RETURN_IF_ERROR(results->add(empty));
        if (bar != nullptr) bar->advance();
    }
    return {};
}

Status run_bench(const BenchOptions& options) {
    BenchPlan plan;
    GCMOE_RETURN_IF_ERROR(make_bench_plan(options, &plan));
    if (!options.floors_only) prepare_queues("cuda", options.console);
    std::unique_ptr<BenchDevice> device;
    if (options.floors_only) {
        device = make_floor_counter(plan);
    } else {
        GCMOE_RETURN_IF_ERROR(make_bench_device(plan, &device));
    }
    const BenchOrigin origin = find_origin(options);
    Results results(options, origin);
    GCMOE_RETURN_IF_ERROR(results.open());
    if (!options.console.json) {
        fmt::print("gcmoe {} ({}), {}, driver {}, {}\n{}\n", kVersion, kCommit,
                   origin.gpu.empty() ? "no GPU: floors only" : origin.gpu, origin.driver,
                   origin.date, point_head(options));
    }
    GCMOE_RETURN_IF_ERROR(measure_all(options, plan, device.get(), &results));
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
