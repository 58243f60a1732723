// The words for scale rules: "normal", "rows_of_codes:1,64,254",
// "span_per_k128:14;span_per_expert:60".
#pragma once

#include <string>

#include "checkpoint/generated_element.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// Codes are 0..254 (255 is NaN), at most ScaleRule::kMaxCodes of them; 0 <= span_per_k128 <=
// span_per_expert <= 240, so that all codes stay in 1..254.
// Errors: kBadConfig with the text and the word at fault.
Status parse_scale_rule(const std::string& text, ScaleRule* out);

}  // namespace gcmoe::checkpoint
