// A case of a suite as the options of `gcmoe check` change it.
#pragma once

#include "check_case.hpp"
#include "gcmoe/status.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

// Applies --ranks and --tokens. Errors: kBadInput naming the option.
Status change_case(const CheckOptions& options, reference::SuiteCase* suite_case);

}  // namespace gcmoe::cli
