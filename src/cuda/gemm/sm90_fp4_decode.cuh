// FP4 weights to E5M2 operands, in registers: eight weights a word, seven instructions.
//
// The eight magnitudes of a scale code fill two registers, and a byte permute picks four of them by
// four nibbles. Word format: layout/weight_tile.hpp (magnitude i in the low 3 bits of nibble i,
// signs of the first four weights in bits 7, 15, 23, 31, of the other four in bits 3, 11, 19, 27).
#pragma once

#include <cstdint>

#include "cuda/ptx/math.cuh"

namespace gcmoe::cuda::gemm {

// E5M2 bytes of {0, 0.5, 1, 1.5} and {2, 3, 4, 6} times 2^(v - 13), v in 0..26.
struct MagnitudeTable {
    std::uint32_t low;
    std::uint32_t high;
};

__device__ __forceinline__ MagnitudeTable magnitude_table(std::uint32_t v) {
    // E5M2: 4 steps of a byte are one octave; zero stays zero.
    return {v * 0x04040400U + 0x0A080400U, v * 0x04040404U + 0x12100E0CU};
}

// One word: operands[0] = weights 0..3 (s = 0), operands[1] = weights 4..7 (s = 1).
__device__ __forceinline__ void decode_word(std::uint32_t word, const MagnitudeTable& table,
                                            std::uint32_t* operands) {
    // Bit 3 of a permute selector would replicate the sign: mask it.
    const std::uint32_t selectors = word & 0x77777777U;
    const std::uint32_t first = ptx::permute_bytes(table.low, table.high, selectors);
    const std::uint32_t second = ptx::permute_bytes(table.low, table.high, selectors >> 16);
    operands[0] = ptx::and_or(word, 0x80808080U, first);
    operands[1] = ptx::and_or(word << 4, 0x80808080U, second);
}

}  // namespace gcmoe::cuda::gemm
