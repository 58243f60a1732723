// Stand-in for src/cuda/ptx/math.cuh: single instructions by their definition in the PTX manual.
#pragma once

#include <bit>
#include <cstdint>

#include "host_stub/words.hpp"

namespace gcmoe::cuda::ptx {

// prmt.b32 in its default mode.
inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
    const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
    std::uint32_t result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t nibble = selector >> (4 * i) & 0xFU;
        auto byte = static_cast<std::uint32_t>(bytes >> (8 * (nibble & 7U)) & 0xFFU);
        if ((nibble & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xFFU : 0x00U;
        result |= byte << (8 * i);
    }
    return result;
}

inline std::uint32_t count_bits(std::uint32_t bits) {
    return static_cast<std::uint32_t>(std::popcount(bits));
}
inline std::uint32_t first_bit(std::uint32_t bits) {
    return static_cast<std::uint32_t>(std::countr_zero(bits));
}
inline std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return (a & b) | c;
}

}  // namespace gcmoe::cuda::ptx
