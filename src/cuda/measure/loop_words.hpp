// The bytes of a stand-alone loop's data, word by word: the same on host and device.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/bits.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::cuda::measure {

enum class LoopBytes : std::uint64_t { kTiles, kCodes, kScales };

// Window positions of four K32 blocks: 8..19, eleven octaves between them.
GCMOE_HD constexpr std::uint32_t window_word(std::uint64_t random) {
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
        word |= (8 + static_cast<std::uint32_t>(random >> (16 * i) & 0xFFFF) % 12) << (8 * i);
    }
    return word;
}

// Four E4M3 codes; NaN becomes the largest number.
GCMOE_HD constexpr std::uint32_t code_word(std::uint64_t random) {
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
        const auto code = static_cast<std::uint8_t>(random >> (8 * i));
        word |= (numerics::e4m3_is_nan(code) ? code - 1U : code) << (8 * i);
    }
    return word;
}

// Word `at` of all tiles, all codes or all scales (FP32 in [0.5, 1.5)).
GCMOE_HD constexpr std::uint32_t loop_word(LoopBytes bytes, std::uint64_t at) {
    constexpr std::uint32_t kTileWords = layout::kFp4TileBytes / 4;
    constexpr std::uint32_t kNibbleWords = layout::kFp4NibbleBytes / 4;
    const std::uint64_t random = numerics::hash_combine(static_cast<std::uint64_t>(bytes) + 1, at);
    switch (bytes) {
        case LoopBytes::kScales:
            return numerics::float_to_bits(0.5F + numerics::hash_uniform(random));
        case LoopBytes::kCodes:
            return code_word(random);
        case LoopBytes::kTiles:
            break;
    }
    if (at % kTileWords < kNibbleWords) return static_cast<std::uint32_t>(random);
    return window_word(random);
}

}  // namespace gcmoe::cuda::measure
