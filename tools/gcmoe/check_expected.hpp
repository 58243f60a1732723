// The bit-true layer's results in a file: the plain run writes them, sanitizer runs read them.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "reference/inputs.hpp"
#include "reference/judge.hpp"

namespace gcmoe::cli {

// Where a case's results stand in a folder.
std::string expected_path(const std::string& folder, const std::string& suite,
                          const std::string& name);

// Errors: kBadInput naming the path.
Status write_expected(const std::string& path, const Shape& shape,
                      const std::vector<reference::RankInputs>& inputs,
                      const std::vector<reference::RankExpected>& expected);

// Errors: kBadInput for a file that is missing, cut short, or was made from other inputs.
Status read_expected(const std::string& path, const Shape& shape,
                     const std::vector<reference::RankInputs>& inputs,
                     std::vector<reference::RankExpected>* out);

}  // namespace gcmoe::cli
