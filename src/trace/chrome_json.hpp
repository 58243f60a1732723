// A trace in the JSON form that chrome://tracing and ui.perfetto.dev open.
#pragma once

#include <string>

#include "trace/trace.hpp"

namespace gcmoe::trace {

// One process per rank, one thread per track, complete events ("X") with microseconds since the
// earliest event, three decimals: exact. What was dropped stands in otherData. `title` names the
// run; it may hold anything that is valid UTF-8.
[[nodiscard]] std::string chrome_json(const Trace& trace, const std::string& title);

}  // namespace gcmoe::trace
