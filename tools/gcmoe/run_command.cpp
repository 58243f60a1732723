// gcmoe run: one MoE layer over all ranks, verified.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "commands.hpp"
#include "packed_layer.hpp"
#include "run_inputs.hpp"
#include "run_layer.hpp"
#include "run_options.hpp"
#include "run_report.hpp"
#include "run_trace.hpp"
#include "run_verify.hpp"
#include "spawn_ranks.hpp"

namespace gcmoe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  gcmoe run --model v4.1-flash --reduced 8 --tokens 16
  gcmoe run --model v4.1-flash --tokens 1                       full size, touched experts only
  gcmoe run --checkpoint /models/DeepSeek-V4.1-Flash --layer 3 --tokens 1 --ranks 8
  gcmoe run --checkpoint /models/GLM-5-FP8 --layer 3 --quantize mxfp4 --tokens 1
  gcmoe run --packed /tmp/rank0.gcmoe /tmp/rank1.gcmoe --tokens 8
  gcmoe run --model gpt-oss-120b --reduced 8 --ranks 4 --tokens 0,1,2,3 --out /tmp/y.safetensors
  gcmoe run --model glm-5.2 --reduced 8 --shared --tokens 64 --routing zipf:1.2 --mask 0.3
  gcmoe run --model v4-flash --reduced 8 --inputs /tmp/inputs.safetensors --launches 5
  gcmoe run --model v4-flash --reduced 8 --executor stepper --executor-seed 7
  gcmoe run --model v4-flash --reduced 8 --ranks 4 --spawn       every rank a process
  gcmoe run --model v4-flash --reduced 8 --ranks 2 --session /tmp/s --rank 0    and --rank 1
With --rank, rank 0 verifies and reports for all; the others hand their results to it.
The report's last word is `verified` only if every live token was compared in this process.)";

Status spawn(const RunOptions& options, int* exit_code) {
    GCMOE_RETURN_IF_ERROR(check_run_options(options));
    SpawnRequest request;
    request.subcommand = "run";
    if (options.packed.empty() || options.ranks.has_value()) {
        GCMOE_RETURN_IF_ERROR(count_ranks(options, &request.num_ranks));
    } else {
        PackedFiles files;
        GCMOE_RETURN_IF_ERROR(open_packed_files(options.packed, &files));
        request.num_ranks = static_cast<int>(files.size());
    }
    request.deadline_s = options.deadline_s;
    request.json = options.console.json;
    return spawn_ranks(request, exit_code);
}

Status run_layer(const RunOptions& options, int* exit_code) {
    const auto begin = std::chrono::steady_clock::now();
    prepare_queues(options.backend, options.console);
    GCMOE_RETURN_IF_ERROR(check_run_options(options));
    LayerRun run;
    GCMOE_RETURN_IF_ERROR(prepare_inputs(options, &run));
    const Shape& shape = run.layer.shape;
    const bool reports = options.processes.rank.value_or(0) == 0;
    if (!options.save_inputs_path.empty() && reports) {
        const IndexType index_type = operator_options(options, run.capacity).index_type;
        GCMOE_RETURN_IF_ERROR(
            save_inputs(options.save_inputs_path, shape, run.layer.hidden, index_type, run.inputs));
    }
    GCMOE_RETURN_IF_ERROR(pack_weights(options, &run));
    trace::Trace trace;
    GCMOE_RETURN_IF_ERROR(launch_traced(options, &run, &trace));
    GCMOE_RETURN_IF_ERROR(gather_ranks(options, &run));
    if (!reports) {
        print_rank_report(options, run);
        *exit_code = run.difference.empty() ? kExitDone : kExitFailed;
        return {};
    }
    Verdict verdict;
    GCMOE_RETURN_IF_ERROR(verify_run(options, &run, &verdict));
    if (!options.out_path.empty()) {
        GCMOE_RETURN_IF_ERROR(save_outputs(options.out_path, shape, run.layer.hidden, run.outputs));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (options.console.json) {
        print_run_json(options, run, verdict, seconds.count(), trace);
    } else {
        if (!options.trace_path.empty()) fmt::print("{}\n", trace_line(options, trace));
        print_run_report(options, run, verdict, seconds.count());
    }
    const bool left_out = options.no_verify && run.difference.empty();
    *exit_code = verdict.verified || left_out ? kExitDone : kExitFailed;
    return {};
}

}  // namespace

void add_run_command(CLI::App& app, int* exit_code) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* run = app.add_subcommand("run", "Run one MoE layer over all ranks and verify it");
    run->footer(kExamples);
    add_run_options(*run, options.get());
    run->callback([options, exit_code] {
        const Status status =
            options->processes.spawn ? spawn(*options, exit_code) : run_layer(*options, exit_code);
        if (!status.ok()) *exit_code = report_error("run", status, options->console.json);
    });
}

}  // namespace gcmoe::cli
