// The sm100 weight tiles: where every weight of 128 rows x 128 of K stands for tcgen05.mma of kind
// mxf8f6f4. Layout only: no kernel reads them yet.
//
// The tiles of a matrix are one 2-D tensor (tiles * 128 rows, 128 values), row-major, K in natural
// order: FP4 64 bytes a row, even k in the low nibble; FP8 128 bytes a row. The instruction wants
// 4-bit operands as 16 values in 16 bytes of shared memory with a 128-byte swizzle; the tensor copy
// makes them so from the packed form (data type 16U4_ALIGN16B), so that a stage is 16 KiB for FP4
// as for FP8.
//
// Scales: one UE8M0 code per row and K32, 512 bytes a tile, in the order of the 32x4 chunk that
// tcgen05.cp.32x128b.warpx4 brings to tensor memory: 32 lanes of 16 bytes; lane l holds rows l,
// l + 32, l + 64 and l + 96, four codes of K each. (The order that cuBLAS documents for MXFP8
// scales, and DeepGEMM's transposition of 4 x 32 words to 32 x 4.)
//
// Rows of the first GEMM: tile 2 b holds the gates of columns 128 b .. 128 b + 127, tile 2 b + 1
// their ups. A task of 128 columns is two instructions with M = 128 into two accumulators; lane r
// of both belongs to column 128 b + r, so that the thread that reads a lane of tensor memory has
// gate and up of one column, with no exchange. (With a pair of CTAs each takes whole pairs of
// tiles.) Order of the tiles: as a task uses them. First GEMM: (b, chunk, gate | up), a K128 stage
// is 256 rows of the tensor, one copy. Second GEMM: (row tile, chunk).
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "layout/weight_tile.hpp"

namespace gcmoe::layout {

inline constexpr int kSm100TileRows = 128;
inline constexpr int kSm100Fp4TileBytes = kSm100TileRows * kFp4RowBytes;   // 8192
inline constexpr int kSm100Fp8TileBytes = kSm100TileRows * kChunkK;        // 16384
inline constexpr int kSm100ScaleBytes = kSm100TileRows * kGroupsPerChunk;  // 512
inline constexpr int kSm100ScaleLanes = 32;                                // of 16 bytes
inline constexpr int kSm100TileAlignment = 32;  // bytes, of the tensor's base (16U4_ALIGN16B)

// Where the scale of a row's K32 group stands among a tile's 512 bytes.
GCMOE_HD constexpr int sm100_scale_offset(int row, int group_in_chunk) {
    return (row % kSm100ScaleLanes) * 16 + (row / kSm100ScaleLanes) * kGroupsPerChunk +
           group_in_chunk;
}

struct Sm100ScalePlace {
    int row;  // in the tile
    int group;
};

// The inverse of sm100_scale_offset.
GCMOE_HD constexpr Sm100ScalePlace sm100_scale_place(int offset) {
    const int in_lane = offset % 16;
    return Sm100ScalePlace{offset / 16 + kSm100ScaleLanes * (in_lane / kGroupsPerChunk),
                           in_lane % kGroupsPerChunk};
}

// What a packed row of the first GEMM is.
GCMOE_HD constexpr FirstGemmRow sm100_first_gemm_row(int packed_row) {
    const int tile = packed_row / kSm100TileRows;
    return FirstGemmRow{tile / 2 * kSm100TileRows + packed_row % kSm100TileRows, tile % 2 == 1};
}

// The inverse of sm100_first_gemm_row.
GCMOE_HD constexpr int sm100_first_gemm_packed_row(FirstGemmRow row) {
    const int tile = row.column / kSm100TileRows * 2 + (row.is_up ? 1 : 0);
    return tile * kSm100TileRows + row.column % kSm100TileRows;
}

// Which tile of the tensor holds a row tile's chunk of K. row_tile = packed row / 128.
GCMOE_HD constexpr int sm100_tile_idx(bool is_first, int row_tile, int chunk, int num_chunks) {
    if (!is_first) return row_tile * num_chunks + chunk;
    return (row_tile / 2 * num_chunks + chunk) * 2 + row_tile % 2;
}

}  // namespace gcmoe::layout
