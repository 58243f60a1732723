// What quantising a checkpoint's weights changed, for people and for scripts.
#pragma once

#include <nlohmann/json.hpp>

#include "checkpoint/quantised_source.hpp"

namespace gcmoe::cli {

// One line per kind of matrix: relative L2 over all experts read, largest error.
void print_quantise_report(const checkpoint::QuantiseReport& report);

// {"gate": {"matrices", "relative_l2", "largest_error", "largest_value"}, ..., "shared_gate": ...}.
[[nodiscard]] nlohmann::ordered_json quantise_json(const checkpoint::QuantiseReport& report);

}  // namespace gcmoe::cli
