// The element types of a safetensors file and their spellings.
#pragma once

#include <cstdint>
#include <string_view>

namespace gcmoe::checkpoint {

enum class Dtype : std::uint8_t {
    kBool,
    kU8,
    kI8,
    kF8E4m3,
    kF8E5m2,
    kF8E8m0,
    kU16,
    kI16,
    kF16,
    kBf16,
    kU32,
    kI32,
    kF32,
    kU64,
    kI64,
    kF64,
};

// The spelling in a safetensors header ("F8_E4M3").
[[nodiscard]] const char* dtype_name(Dtype dtype);

// Size of one element.
// Units: bytes.
[[nodiscard]] std::uint64_t dtype_bytes(Dtype dtype);

// False if no type is spelled so; *out is then untouched.
[[nodiscard]] bool dtype_from_name(std::string_view name, Dtype* out);

}  // namespace gcmoe::checkpoint
