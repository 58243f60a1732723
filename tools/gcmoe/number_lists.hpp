// Lists of numbers as options spell them.
#pragma once

#include <string>
#include <vector>

#include "gcmoe/status.hpp"

namespace gcmoe::cli {

// "8" or "0,1,2,3": counts of 0 or more. Errors: kBadInput naming option, text and the word at
// fault.
Status parse_counts(const std::string& option, const std::string& text, std::vector<int>* out);

// "0-7,12": ids in [0, limit), ascending and each once in the result.
Status parse_ids(const std::string& option, const std::string& text, int limit,
                 std::vector<int>* out);

// "0-7, 12": the inverse of parse_ids, cut after a few ranges.
[[nodiscard]] std::string ids_text(const std::vector<int>& ascending);

// The whole word as a number. False for anything else.
[[nodiscard]] bool parse_int(const std::string& word, int* out);
[[nodiscard]] bool parse_double(const std::string& word, double* out);

[[nodiscard]] std::vector<std::string> split_at(const std::string& text, char separator);

}  // namespace gcmoe::cli
