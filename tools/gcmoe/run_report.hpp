// What a run prints: a short report for people, or one JSON object.
#pragma once

#include "run_layer.hpp"
#include "run_verify.hpp"
#include "trace/trace.hpp"

namespace gcmoe::cli {

void print_run_report(const RunOptions& options, const LayerRun& run, const Verdict& verdict,
                      double seconds);
void print_run_json(const RunOptions& options, const LayerRun& run, const Verdict& verdict,
                    double seconds, const trace::Trace& trace);

// What a rank that is a process says when rank 0 reports for it.
void print_rank_report(const RunOptions& options, const LayerRun& run);

}  // namespace gcmoe::cli
