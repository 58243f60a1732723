// What `gcmoe run` was asked for, and the library's options that follow from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "console.hpp"
#include "gcmoe/group.hpp"
#include "gcmoe/operator.hpp"
#include "gpu_options.hpp"
#include "layer_options.hpp"
#include "process_options.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

// As parsed; empty optionals were not given.
struct RunOptions {
    ConsoleOptions console;
    LayerOptions layer;
    std::vector<std::string> packed;  // files instead of a layer
    std::optional<int> ranks;

    std::string inputs_path;
    std::optional<std::string> tokens;
    std::optional<std::string> routing;
    std::optional<double> mask;
    std::optional<double> factor;
    std::optional<std::uint64_t> seed;
    std::string save_inputs_path;
    std::string out_path;

    ProcessOptions processes;
    std::string backend = "cpu";
    GpuOptions gpu;
    std::string executor = "threads";
    std::optional<std::uint64_t> executor_seed;
    std::optional<int> resident_units;
    PlanOptions plan;
    int capacity = 0;  // 0 = the most tokens of a rank
    std::string index_type = "int64";
    int launches = 1;
    double deadline_s = 300.0;
    bool allow_inexact = false;
    bool no_verify = false;
    std::string trace_path;  // empty = no trace
    int trace_events = 16384;
};

void add_run_options(CLI::App& command, RunOptions* options);

// Options that exclude each other, and words that stand for nothing.
// Errors: kBadInput naming option and value.
Status check_run_options(const RunOptions& options);

// The ranks of the run: --ranks, else those of --inputs, else 8.
Status count_ranks(const RunOptions& options, int* num_ranks);

// The generator's case for a layer: tokens per rank, routing, mask, factor, seed.
Status make_case(const RunOptions& options, const Layer& layer, reference::SuiteCase* out);

[[nodiscard]] GroupOptions group_options(const RunOptions& options);
[[nodiscard]] OperatorOptions operator_options(const RunOptions& options, int capacity);

}  // namespace gcmoe::cli
