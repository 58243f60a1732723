// The token ring: blocks of row_block rows, reused. Both the rows that role 1 pulls (x) and the
// second-GEMM activations (act) stand in it as [K128 chunk][row][128 bytes], so that one chunk of a
// block is one bulk copy in the order in which the MMA reads it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::layout {

// Columns of one first-GEMM task, of one chunk and of one activation scale.
inline constexpr int kChunk = 128;

// Where a ring row came from and where its result goes.
struct Origin {
    std::uint32_t rank = 0;    // source rank, the owner of the token
    std::uint32_t slot = 0;    // token * topk + position in the token's list
    float weight = 0.0F;       // routing weight
    std::uint32_t unused = 0;  // keeps an origin one 16-byte store
};
static_assert(sizeof(Origin) == 16 && std::is_trivially_copyable_v<Origin>);

// A chunked row store: blocks of `row_block` rows and `num_chunks` chunks, with one 4-byte scale
// word per row and chunk (a float, or four UE8M0 codes with group 0 in the low byte) as
// [block][chunk][row].
struct ChunkedRows {
    std::uint8_t* codes = nullptr;    // (blocks, num_chunks, row_block, 128) e4m3, swizzled
    std::uint32_t* scales = nullptr;  // (blocks, num_chunks, row_block) words
    std::uint32_t row_block = 0;
    std::uint32_t num_chunks = 0;

    // First byte of a chunk: row_block * 128 contiguous bytes.
    [[nodiscard]] GCMOE_HD std::uint8_t* chunk(std::uint32_t block, std::uint32_t chunk_idx) const {
        return codes + (std::uint64_t{block} * num_chunks + chunk_idx) * row_block * kChunk;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* scale(std::uint32_t block,
                                                std::uint32_t chunk_idx) const {
        return scales + (std::uint64_t{block} * num_chunks + chunk_idx) * row_block;
    }
};

// Both K orders keep 4 neighbouring K together, and a swizzled unit has 16 bytes: rows move in
// words.
inline constexpr int kWordK = 4;

// Copies 128 codes in natural K order into row `row` of a chunk, in the packed weights' K order.
GCMOE_HD inline void store_chunk_row(std::uint8_t* chunk, int row, KOrder order,
                                     const std::uint8_t* codes) {
    for (int k = 0; k < kChunk; k += kWordK) {
        std::uint8_t* to = chunk + ring_byte_offset(row, k_byte_position(order, k));
        for (int i = 0; i < kWordK; ++i) to[i] = codes[k + i];
    }
}

// The inverse: 128 codes in natural K order out of row `row` of a chunk.
GCMOE_HD inline void load_chunk_row(const std::uint8_t* chunk, int row, KOrder order,
                                    std::uint8_t* codes) {
    for (int k = 0; k < kChunk; k += kWordK) {
        const std::uint8_t* from = chunk + ring_byte_offset(row, k_byte_position(order, k));
        for (int i = 0; i < kWordK; ++i) codes[k + i] = from[i];
    }
}

}  // namespace gcmoe::layout
