// The tuned tables inside the library. The .cpp is generated: cmake/embed_tuned.cmake.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace gcmoe::plan {

// (name without ending, text) of every file in src/plan/tuned, by name.
[[nodiscard]] const std::vector<std::pair<std::string_view, std::string_view>>&
shipped_table_texts();

}  // namespace gcmoe::plan
