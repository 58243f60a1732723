// Judges what a user passed in. Every refusal names the field, its value and the limit with its
// cause.
#pragma once

#include "gcmoe/operator.hpp"

namespace gcmoe::op {

// Options of an operator against the shape. Plans are judged by plan/choose_plan.
Status validate_options(const Shape& shape, const OperatorOptions& options);

// One launch's arguments.
Status validate_launch(const OperatorOptions& options, const Shape& shape, const LaunchArgs& args);

}  // namespace gcmoe::op
