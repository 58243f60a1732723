// The options that say how a launch runs: ring, partition, task sizes, overlap.
#pragma once

#include <string>

#include "gcmoe/operator.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

// What is not given stays as it is: 0, and the plan chooses.
void add_plan_options(CLI::App& command, PlanOptions* plan);

// --tuned, which is one of them.
void add_tuned_option(CLI::App& command, std::string* tuned);

}  // namespace gcmoe::cli
