// What a plan says, value by value, and where each value comes from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe {

enum class PlanOrigin : std::uint8_t {
    kExplicit,  // the caller's PlanOptions
    kTuned,     // an entry of a tuned table
    kRule,      // worked out from the shape
};
// "explicit", "tuned", "rule".
[[nodiscard]] const char* plan_origin_name(PlanOrigin origin);

// Named as in PlanOptions.
struct PlanValue {
    std::string name;
    std::string value;
    PlanOrigin origin = PlanOrigin::kRule;
};

struct PlanReport {
    std::string name;
    std::vector<PlanValue> values;
    std::string tuned;   // the entry that was used, or why none was
    std::string launch;  // launch mode that the entry recommends; empty = none
};

// The plans that an operator of these options would have. Allocates nothing; sizes for a GPU that
// this build cannot run are those of an H200. Errors: as Operator::size_report.
Status report_plans(const Shape& shape, const OperatorOptions& options,
                    std::vector<PlanReport>* out);

}  // namespace gcmoe
