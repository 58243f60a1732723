// Where the data of a stand-alone loop stand, and which task is which.
//
// Weights: expert after expert, its first matrix (2 I, H), then its second (H, I), each in tiles
// (rows / 64, K / 128). Tokens: expert after expert, those of the first GEMM (K = H), then those of
// the second (K = I), as (K / 128, rows, 128) codes, swizzled as in a token stage, and (K / 128,
// rows) FP32 scales. Sums: (CTAs, kept rounds, rows, 256).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::cuda::measure {

inline constexpr std::uint32_t kLoopTaskRows = 256;  // weight rows of a task
inline constexpr std::uint32_t kLoopRowTiles = kLoopTaskRows / layout::kTileRows;

// One GEMM's 256 weight rows with its expert's tokens.
struct LoopTask {
    std::uint32_t first_tile;   // of the expert's matrix, among all tiles
    std::uint32_t index;        // of the task in the matrix
    std::uint32_t chunks;       // K / 128
    std::uint32_t row_tiles;    // of the matrix
    std::uint32_t token_chunk;  // first one, among all chunks of tokens
};

struct LoopGeometry {
    std::uint32_t hidden_chunks;  // H / 128, even
    std::uint32_t inter_chunks;   // I / 128
    std::uint32_t experts;
    std::uint32_t rows;  // live rows of each expert
    std::uint32_t kept;  // rounds of a CTA whose sums stay; the next one overwrites the oldest

    [[nodiscard]] GCMOE_HD constexpr std::uint32_t expert_tasks() const {
        return inter_chunks + hidden_chunks / 2;
    }
    [[nodiscard]] GCMOE_HD constexpr std::uint32_t num_tasks() const {
        return experts * expert_tasks();
    }
    [[nodiscard]] GCMOE_HD constexpr std::uint32_t num_tiles() const {
        return experts * 6 * hidden_chunks * inter_chunks;
    }
    [[nodiscard]] GCMOE_HD constexpr std::uint32_t num_token_chunks() const {
        return experts * (hidden_chunks + inter_chunks);
    }
    [[nodiscard]] constexpr std::size_t tile_bytes() const {
        return std::size_t{num_tiles()} * layout::kFp4TileBytes;
    }
    [[nodiscard]] constexpr std::size_t code_bytes() const {
        return std::size_t{num_token_chunks()} * rows * layout::kChunkK;
    }
    [[nodiscard]] constexpr std::size_t scale_bytes() const {
        return std::size_t{num_token_chunks()} * rows * sizeof(float);
    }
    // The sums of a task of CTA `cta`: index of the first one.
    [[nodiscard]] GCMOE_HD constexpr std::size_t first_sum(std::uint32_t cta,
                                                           std::uint32_t round) const {
        return (std::size_t{cta} * kept + round % kept) * rows * kLoopTaskRows;
    }

    // Task `number`: experts in turn, in each the first GEMM's tasks before the second's.
    [[nodiscard]] GCMOE_HD constexpr LoopTask task(std::uint32_t number) const {
        const std::uint32_t expert = number / expert_tasks();
        const std::uint32_t index = number % expert_tasks();
        const std::uint32_t tiles = 2 * hidden_chunks * inter_chunks;  // of the second matrix
        const std::uint32_t chunk = expert * (hidden_chunks + inter_chunks);
        if (index < inter_chunks) {
            return {expert * 3 * tiles, index, hidden_chunks, 4 * inter_chunks, chunk};
        }
        return {expert * 3 * tiles + 2 * tiles, index - inter_chunks, inter_chunks,
                2 * hidden_chunks, chunk + hidden_chunks};
    }
};

}  // namespace gcmoe::cuda::measure
