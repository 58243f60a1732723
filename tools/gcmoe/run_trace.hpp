// What the units of a run recorded: the file for a viewer, and a summary for people.
#pragma once

#include <string>

#include "run_layer.hpp"
#include "trace/trace.hpp"

namespace gcmoe::cli {

// launch_layer, then, with --trace, the events of all ranks into its file: also of a launch that
// stalled, whose status is returned.
Status launch_traced(const RunOptions& options, LayerRun* run, trace::Trace* out);

// "trace: 1024 events of 24 units in FILE", and how many did not fit.
[[nodiscard]] std::string trace_line(const RunOptions& options, const trace::Trace& trace);

// Per role how busy its units were, how much of role 1 role 2's work hid, and the longest waits.
void print_trace_report(const RunOptions& options, const LayerRun& run, const trace::Trace& trace);
void print_trace_json(const RunOptions& options, const LayerRun& run, const trace::Trace& trace);

}  // namespace gcmoe::cli
