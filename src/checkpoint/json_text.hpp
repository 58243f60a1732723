// Strict JSON: what a safetensors header, an index and a config.json are parsed with.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

using Json = nlohmann::json;

// No JSON text above this size is parsed. Why 100 MiB: the reference implementation of safetensors
// refuses headers above 100 MB, and the index of a 500 B model (92,160 tensors) has about 8 MB.
inline constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{100} << 20;

// Parses one JSON value. Duplicate keys of an object and nesting above 32 levels are errors.
// Errors: kBadCheckpoint; the sentence begins with `where` ("file 'x': header").
Status parse_json(std::string_view text, const std::string& where, Json* out);

// Reads and parses a file of at most kMaxJsonBytes that holds one JSON object.
// Errors: kBadCheckpoint with the path.
Status read_json_file(const std::string& path, Json* out);

// A value as JSON text for an error sentence, cut if long.
[[nodiscard]] std::string json_text(const Json& value);

}  // namespace gcmoe::checkpoint
