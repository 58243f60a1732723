// gcmoe trace: one MoE layer over all ranks, and what every unit did when.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands.hpp"
#include "run_layer.hpp"
#include "run_options.hpp"
#include "run_trace.hpp"

namespace gcmoe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  gcmoe trace --model v4.1-flash --reduced 8 --ranks 4 --tokens 64
  gcmoe trace --model v4-flash --reduced 8 --shared --trace /tmp/layer.json --json
  gcmoe trace --backend cuda --model v4.1-flash --reduced 4 --ranks 8 --tokens 256
Open the file in ui.perfetto.dev or chrome://tracing, or draw it: scripts/render_trace.py FILE.
Times are those of a layer without --verify's captures; `gcmoe run --trace FILE` verifies, too.)";

Status run_trace(const RunOptions& options) {
    prepare_queues(options.backend, options.console);
    GCMOE_RETURN_IF_ERROR(check_run_options(options));
    LayerRun run;
    GCMOE_RETURN_IF_ERROR(prepare_inputs(options, &run));
    GCMOE_RETURN_IF_ERROR(pack_weights(options, &run));
    trace::Trace trace;
    GCMOE_RETURN_IF_ERROR(launch_traced(options, &run, &trace));
    if (!options.out_path.empty()) {
        GCMOE_RETURN_IF_ERROR(
            save_outputs(options.out_path, run.layer.shape, run.layer.hidden, run.outputs));
    }
    if (options.console.json) {
        print_trace_json(options, run, trace);
    } else {
        print_trace_report(options, run, trace);
    }
    return {};
}

}  // namespace

void add_trace_command(CLI::App& app, int* exit_code) {
    auto options = std::make_shared<RunOptions>();
    options->trace_path = "trace.json";
    options->no_verify = true;
    CLI::App* trace = app.add_subcommand(
        "trace", "Run one MoE layer, write what every unit did when, and sum it up");
    trace->footer(kExamples);
    add_run_options(*trace, options.get());
    trace->callback([options, exit_code] {
        const Status status = run_trace(*options);
        if (!status.ok()) *exit_code = report_error("trace", status, options->console.json);
    });
}

}  // namespace gcmoe::cli
