// A plan for people and as JSON: every value with where it comes from.
#pragma once

#include <string>

#include "console.hpp"
#include "gcmoe/plan_report.hpp"

namespace gcmoe::cli {

// "row_block 16 (rule), combine follow (tuned), ..."
[[nodiscard]] std::string plan_text(const PlanReport& report);
// {"row_block": {"value": "16", "from": "rule"}, ...}, the table's entry, and the launch mode that
// it recommends.
[[nodiscard]] nlohmann::ordered_json plan_json(const PlanReport& report);

}  // namespace gcmoe::cli
