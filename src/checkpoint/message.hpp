// Text from files and callers made safe for an error sentence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gcmoe::checkpoint {

// 'text' in single quotes, control bytes and bytes above 0x7e as \xNN, cut after 200 bytes: a
// hostile tensor name can neither flood a log nor steer a terminal.
[[nodiscard]] std::string quote(std::string_view text);

// The same without the quotes.
[[nodiscard]] std::string printable(std::string_view text);

// "[2304, 2560]".
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

// The sentence of an errno value: "No space left on device (28)".
[[nodiscard]] std::string errno_text(int error);

}  // namespace gcmoe::checkpoint
