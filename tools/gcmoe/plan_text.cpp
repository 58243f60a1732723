#include "plan_text.hpp"

#include <fmt/format.h>

#include <vector>

namespace gcmoe::cli {

std::string plan_text(const PlanReport& report) {
    std::vector<std::string> values;
    for (const PlanValue& value : report.values) {
        values.push_back(
            fmt::format("{} {} ({})", value.name, value.value, plan_origin_name(value.origin)));
    }
    return joined(values);
}

nlohmann::ordered_json plan_json(const PlanReport& report) {
    using Json = nlohmann::ordered_json;
    Json values = Json::object();
    for (const PlanValue& value : report.values) {
        values[value.name] = {{"value", value.value}, {"from", plan_origin_name(value.origin)}};
    }
    return {{"name", report.name},
            {"values", values},
            {"tuned", report.tuned},
            {"launch", report.launch.empty() ? Json() : Json(report.launch)}};
}

}  // namespace gcmoe::cli
