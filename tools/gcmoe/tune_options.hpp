// The options of gcmoe tune, and what they stand for.
#pragma once

#include <optional>
#include <string>

#include "bench_options.hpp"

namespace gcmoe::cli {

// As parsed. What a bench has, too, means the same there.
struct TuneOptions {
    BenchOptions bench;
    std::optional<int> hidden;
    std::optional<int> inter;
    std::optional<int> experts;  // of the rank
    std::optional<int> topk;
    double budget_s = 300;
    double threshold_percent = 1;
    bool candidates_only = false;
    std::optional<int> sms;
    std::string derive_path;  // a table to derive another one from
    std::string gpu_name;
};

void add_tune_options(CLI::App& command, TuneOptions* options);

// What the words stand for.
struct TunePlan {
    BenchPlan bench;  // models, tokens ascending, protocol; one variant
    double budget_s = 0;
    double threshold_percent = 0;
    int sms = 0;  // candidates only: of the GPU that they are for
};

// Errors: kBadInput naming option and value.
Status make_tune_plan(const TuneOptions& options, TunePlan* out);

}  // namespace gcmoe::cli
