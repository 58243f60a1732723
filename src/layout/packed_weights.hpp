// What PackedWeights holds: the tiles, factors and biases of one rank's experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::layout {

// One routed expert matrix. A weight is operand * factor(packed_row, chunk), operand as
// decode_fp4_tile_row gives it.
struct PackedMatrix {
    enum class DecodeForm : std::uint8_t {
        kRowFactor,    // one factor per row, applied after all of K
        kChunkFactor,  // one factor per row and 128 of K
    };

    DecodeForm form = DecodeForm::kRowFactor;
    int rows = 0;    // packed rows, a multiple of kTileRows
    int chunks = 0;  // K / kChunkK
    KOrder order = KOrder::kNatural;
    std::vector<std::uint8_t> tiles;  // (rows / 64, chunks, kFp4TileBytes)
    std::vector<float> factors;       // kRowFactor: (rows); kChunkFactor: (rows / 64, chunks, 64)
    std::vector<float> bias;          // (rows) in packed-row order; empty without biases

    [[nodiscard]] float factor(int packed_row, int chunk) const {
        if (form == DecodeForm::kRowFactor) return factors[static_cast<std::size_t>(packed_row)];
        return factors[factor_idx(packed_row, chunk)];
    }
    // Of the chunk form.
    [[nodiscard]] std::size_t factor_idx(int packed_row, int chunk) const {
        return tile_idx(packed_row / kTileRows, chunk) * kTileRows +
               static_cast<std::size_t>(packed_row % kTileRows);
    }
    [[nodiscard]] const std::uint8_t* tile(int row_tile, int chunk) const {
        return tiles.data() + tile_idx(row_tile, chunk) * kFp4TileBytes;
    }
    [[nodiscard]] std::size_t tile_idx(int row_tile, int chunk) const {
        return static_cast<std::size_t>(row_tile) * static_cast<std::size_t>(chunks) +
               static_cast<std::size_t>(chunk);
    }
};

// One FP8 matrix of the shared expert. A weight is e4m3 * scale(packed_row, chunk, group).
struct PackedFp8Matrix {
    int rows = 0;    // packed rows, a multiple of kTileRows
    int chunks = 0;  // K / kChunkK
    KOrder order = KOrder::kNatural;
    int scale_groups_per_chunk = 1;   // 1: a scale per K128; 4: per K32
    std::vector<std::uint8_t> tiles;  // (rows / 64, chunks, kFp8TileBytes)
    std::vector<float> scales;        // (rows / 64, chunks, 64, scale_groups_per_chunk)

    [[nodiscard]] float scale(int packed_row, int chunk, int group) const {
        return scales[scale_idx(packed_row, chunk) + static_cast<std::size_t>(group)];
    }
    [[nodiscard]] std::size_t scale_idx(int packed_row, int chunk) const {
        const std::size_t row = tile_idx(packed_row / kTileRows, chunk) * kTileRows +
                                static_cast<std::size_t>(packed_row % kTileRows);
        return row * static_cast<std::size_t>(scale_groups_per_chunk);
    }
    [[nodiscard]] const std::uint8_t* tile(int row_tile, int chunk) const {
        return tiles.data() + tile_idx(row_tile, chunk) * kFp8TileBytes;
    }
    [[nodiscard]] std::size_t tile_idx(int row_tile, int chunk) const {
        return static_cast<std::size_t>(row_tile) * static_cast<std::size_t>(chunks) +
               static_cast<std::size_t>(chunk);
    }
};

struct PackedExpert {
    PackedMatrix first;   // (2 * inter, hidden), rows as first_gemm_row says
    PackedMatrix second;  // (hidden, inter), packed row = hidden column
};

// The order of K that the first and second GEMM of routed experts use. UE8M0 activations are
// promoted per K32, so there a wgmma step must be one K32 block.
[[nodiscard]] constexpr KOrder routed_k_order(ActivationScale scale) {
    return scale == ActivationScale::kUe8m0K32 ? KOrder::kNatural : KOrder::kQuadBlock;
}

}  // namespace gcmoe::layout

namespace gcmoe {

// Tiles of one rank in a device's memory, in the form of the backend that made them.
struct DeviceWeights {
    virtual ~DeviceWeights() = default;
    // True if the tiles of this expert are here.
    [[nodiscard]] virtual bool has_expert(int expert_idx_in_rank) const = 0;
};

// The tiles of one rank: on the host, as PackedWeights::pack leaves them, or on a device.
struct PackedStorage {
    Shape shape;
    int rank = 0;
    layout::KOrder order = layout::KOrder::kNatural;  // of the routed experts
    // (experts_per_rank()), by index in the rank; null = not packed (PackOptions::only_experts), or
    // only on the device.
    std::vector<std::unique_ptr<layout::PackedExpert>> experts;
    bool has_shared = false;
    layout::PackedFp8Matrix shared_first;         // (2 * shared_inter, hidden), natural order
    layout::PackedFp8Matrix shared_second;        // (hidden, shared_inter), natural order
    std::shared_ptr<const DeviceWeights> device;  // null = only on the host

    // The upload of the host's tiles that operators share as long as one of them keeps it.
    mutable std::mutex upload_mutex;
    mutable std::weak_ptr<const DeviceWeights> upload;
};

}  // namespace gcmoe
