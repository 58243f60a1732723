// The table of contents of a safetensors file: parsed and proved consistent before a byte is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dtype.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// The metadata object of a header: "__metadata__".
inline constexpr const char* kMetadataName = "__metadata__";

// One tensor. Offsets count from the start of the data section.
struct TensorRecord {
    std::string name;
    Dtype dtype = Dtype::kU8;
    std::vector<std::int64_t> shape;
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
};

struct SafetensorsHeader {
    std::vector<TensorRecord> tensors;  // by offset
    std::map<std::string, std::string> metadata;
};

// Size of a tensor, or false if it does not fit 64 bits or a dimension is negative.
// Units: bytes.
[[nodiscard]] bool tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape,
                                std::uint64_t* out);

// Parses `text`, the JSON of a header whose data section has data_bytes bytes. What comes out is
// proved: every tensor has a known type, its size is dtype x shape, and the tensors tile the data
// section in order without overlap or hole.
// Errors: kBadCheckpoint with the path, the tensor and the values.
Status parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                const std::string& path, SafetensorsHeader* out);

}  // namespace gcmoe::checkpoint
