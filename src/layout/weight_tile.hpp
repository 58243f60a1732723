// The sm90 weight tiles: where every weight of 64 rows x 128 of K stands.
//
// The order is the register-A fragment of wgmma m64nNk32 for 8-bit operands. Row r = 16 w + 8 h + g
// belongs to warp w (0..3), half h of its 16-row slab and lane group g (0..7). Quad lane q (0..3)
// of the group, lane = 4 g + q, holds 32 weights of the row: steps j = 0..3 (one wgmma each), in a
// step two halves s = 0, 1 of four consecutive weights i = 0..3.
//
// FP4 tile, 4352 bytes: [w][h][lane][16 bytes] nibbles, then [row][4] window positions v, one byte
// per row and K32 block. The 16 bytes are four little-endian words, word j for step j. In a word
// the magnitude of weight n = 4 s + i is the low 3 bits of nibble n; the sign of weight i (s = 0)
// is bit 3 of nibble 2 i + 1, the sign of weight 4 + i (s = 1) bit 3 of nibble 2 i: what the byte
// permutation of the decoder wants (facts/fp4-decode.md, section 3).
// A weight's operand is e2m1 * 2^(v - 13), exactly an E5M2 value (numerics/scale_window.hpp).
//
// FP8 tile, 8192 bytes: [w][h][lane][32 bytes], byte 8 j + 4 s + i. No scales inside.
//
// Both orders put the quad lanes of a row side by side: a row is one contiguous run of 64 or 128
// bytes, at row * 64 or row * 128. Tiles of a 64-row group are contiguous over K:
// tile index = row_tile * num_chunks + chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/scale_window.hpp"

namespace gcmoe::layout {

inline constexpr int kTileRows = 64;     // weight rows of a tile
inline constexpr int kChunkK = 128;      // K of a tile
inline constexpr int kScaleGroupK = 32;  // K of one UE8M0 scale, and of one wgmma step
inline constexpr int kGroupsPerChunk = kChunkK / kScaleGroupK;
inline constexpr int kFp4RowBytes = kChunkK / 2;
inline constexpr int kFp4NibbleBytes = kTileRows * kFp4RowBytes;        // 4096
inline constexpr int kFp4ScaleBytes = kTileRows * kGroupsPerChunk;      // 256
inline constexpr int kFp4TileBytes = kFp4NibbleBytes + kFp4ScaleBytes;  // 4352
inline constexpr int kFp8TileBytes = kTileRows * kChunkK;               // 8192

// Which K a fragment position (q, j, s, i) stands for. Tokens are permuted alike, so that any order
// gives the same sums of 32 or 128.
enum class KOrder : std::uint8_t {
    kNatural,    // k = 32 j + 16 s + 4 q + i: a step is one K32 block
    kQuadBlock,  // k = 32 q + 8 j + 4 s + i: a quad lane owns one K32 block, one scale per lane
};

// A place in a lane's fragment of one row.
struct FragmentPosition {
    int quad;  // q, lane of the quad
    int step;  // j, wgmma step
    int half;  // s, first or second register of the step
    int byte;  // i, byte in the register
};

GCMOE_HD constexpr FragmentPosition fragment_position(KOrder order, int k_in_chunk) {
    const int k = k_in_chunk;
    if (order == KOrder::kNatural) {
        return FragmentPosition{(k >> 2) & 3, k >> 5, (k >> 4) & 1, k & 3};
    }
    return FragmentPosition{k >> 5, (k >> 3) & 3, (k >> 2) & 1, k & 3};
}

GCMOE_HD constexpr int k_of_position(KOrder order, FragmentPosition at) {
    if (order == KOrder::kNatural) return 32 * at.step + 16 * at.half + 4 * at.quad + at.byte;
    return 32 * at.quad + 8 * at.step + 4 * at.half + at.byte;
}

// --- FP4 tile -------------------------------------------------------------------------------

// Byte offset, in a tile, of the word that holds eight weights of a row.
GCMOE_HD constexpr int fp4_word_offset(int row, int quad, int step) {
    // ((w * 2 + h) * 32 + 4 * g + q) * 16 + 4 * j with row = 16 w + 8 h + g.
    return row * kFp4RowBytes + quad * 16 + step * 4;
}

// Where one weight stands: its magnitude is three bits, its sign one bit of another nibble.
struct Fp4Place {
    int magnitude_byte;   // byte offset in the tile
    int magnitude_shift;  // 0 or 4
    int sign_byte;
    int sign_shift;  // 3 or 7
};

GCMOE_HD constexpr Fp4Place fp4_place(int row, int k_in_chunk, KOrder order) {
    const FragmentPosition at = fragment_position(order, k_in_chunk);
    const int word = fp4_word_offset(row, at.quad, at.step);
    const int magnitude_nibble = 4 * at.half + at.byte;
    const int sign_nibble = at.half == 0 ? 2 * at.byte + 1 : 2 * at.byte;
    return Fp4Place{word + magnitude_nibble / 2, 4 * (magnitude_nibble % 2), word + sign_nibble / 2,
                    4 * (sign_nibble % 2) + 3};
}

// The E2M1 code (sign << 3 | magnitude) of a weight.
GCMOE_HD constexpr std::uint8_t fp4_tile_get(const std::uint8_t* tile, int row, int k_in_chunk,
                                             KOrder order) {
    const Fp4Place place = fp4_place(row, k_in_chunk, order);
    const int magnitude = (tile[place.magnitude_byte] >> place.magnitude_shift) & 7;
    const int sign = (tile[place.sign_byte] >> place.sign_shift) & 1;
    return static_cast<std::uint8_t>(sign << 3 | magnitude);
}

GCMOE_HD constexpr void fp4_tile_set(std::uint8_t* tile, int row, int k_in_chunk, KOrder order,
                                     std::uint8_t nibble) {
    const Fp4Place place = fp4_place(row, k_in_chunk, order);
    std::uint8_t& magnitude = tile[place.magnitude_byte];
    magnitude = static_cast<std::uint8_t>((magnitude & ~(7 << place.magnitude_shift)) |
                                          (nibble & 7) << place.magnitude_shift);
    std::uint8_t& sign = tile[place.sign_byte];
    sign = static_cast<std::uint8_t>((sign & ~(1 << place.sign_shift)) | ((nibble >> 3) & 1)
                                                                             << place.sign_shift);
}

// Byte offset of the window position v of a row's K32 block.
GCMOE_HD constexpr int fp4_scale_offset(int row, int group_in_chunk) {
    return kFp4NibbleBytes + row * kGroupsPerChunk + group_in_chunk;
}

// The window position v (0..26) of a row's K32 block.
GCMOE_HD constexpr std::uint8_t fp4_tile_scale(const std::uint8_t* tile, int row,
                                               int group_in_chunk) {
    return tile[fp4_scale_offset(row, group_in_chunk)];
}

// Eight E2M1 codes, weight n in nibble n, to a tile word.
GCMOE_HD constexpr std::uint32_t fp4_weave_word(std::uint32_t codes) {
    // Signs of n = 0..3 from bits 4 n + 3 to 8 n + 7, of n = 4..7 from 4 n + 3 to 8 (n - 4) + 3.
    std::uint32_t first = codes & 0x00008888U;
    first = (first | first << 8) & 0x00880088U;
    first = (first | first << 4) & 0x08080808U;
    std::uint32_t second = (codes >> 16) & 0x00008888U;
    second = (second | second << 8) & 0x00880088U;
    second = (second | second << 4) & 0x08080808U;
    return (codes & 0x77777777U) | first << 4 | second;
}

// The inverse of fp4_weave_word.
GCMOE_HD constexpr std::uint32_t fp4_unweave_word(std::uint32_t word) {
    std::uint32_t first = (word >> 4) & 0x08080808U;
    first = (first | first >> 4) & 0x00880088U;
    first = (first | first >> 8) & 0x00008888U;
    std::uint32_t second = word & 0x08080808U;
    second = (second | second >> 4) & 0x00880088U;
    second = (second | second >> 8) & 0x00008888U;
    return (word & 0x77777777U) | first | second << 16;
}

// --- FP8 tile -------------------------------------------------------------------------------

// Byte offset of a weight's E4M3 code.
GCMOE_HD constexpr int fp8_tile_offset(int row, int k_in_chunk, KOrder order) {
    const FragmentPosition at = fragment_position(order, k_in_chunk);
    // ((w * 2 + h) * 32 + 4 * g + q) * 32 + 8 * j + 4 * s + i with row = 16 w + 8 h + g.
    return row * kChunkK + at.quad * 32 + at.step * 8 + at.half * 4 + at.byte;
}

// --- Activation rows, as the ring stores them for the B operand ------------------------------

// Where k stands among the 128 bytes of a chunk of an activation row. wgmma reads byte
// 32 j + 16 s + 4 q + i beside fragment position (q, j, s, i).
GCMOE_HD constexpr int k_byte_position(KOrder order, int k_in_chunk) {
    return k_of_position(KOrder::kNatural, fragment_position(order, k_in_chunk));
}

// The k that stands at a byte: the inverse of k_byte_position.
GCMOE_HD constexpr int k_of_byte_position(KOrder order, int byte) {
    return k_of_position(order, fragment_position(KOrder::kNatural, byte));
}

// Offset of a byte (0..127) of a row in a [row][128] chunk with the 128-byte swizzle: the index of
// the 16-byte unit is XORed with row & 7.
GCMOE_HD constexpr int ring_byte_offset(int row, int byte) {
    return row * kChunkK + ((byte / 16) ^ (row & 7)) * 16 + byte % 16;
}

// --- Row order of the first GEMM -------------------------------------------------------------

// What a packed row of the first GEMM is. A 64-row tile holds gate and up of 32 columns, a task of
// 128 columns is four tiles; in a 16-row slab w rows g are gates and rows g + 8 the ups of the same
// columns, so that one thread holds both halves of a pair.
struct FirstGemmRow {
    int column;  // of the intermediate, 0..inter - 1
    bool is_up;
};

GCMOE_HD constexpr FirstGemmRow first_gemm_row(int packed_row) {
    const int tile = packed_row / kTileRows;
    const int row = packed_row % kTileRows;
    return FirstGemmRow{32 * tile + 8 * (row / 16) + row % 8, (row / 8) % 2 == 1};
}

// The packed row of a column's gate or up: the inverse of first_gemm_row.
GCMOE_HD constexpr int first_gemm_packed_row(FirstGemmRow row) {
    const int in_tile = row.column % 32;
    return kTileRows * (row.column / 32) + 16 * (in_tile / 8) + (row.is_up ? 8 : 0) + in_tile % 8;
}

// --- Row decode in scalar code (host only): the reference's, and what SIMD kernels are held to --

// Two E2M1 values per byte, low nibble first.
constexpr std::array<std::array<float, 2>, 256> make_e2m1_pair_table() {
    std::array<std::array<float, 2>, 256> table{};
    for (unsigned pair = 0; pair < 256; ++pair) {
        table[pair] = {numerics::e2m1_to_float(static_cast<std::uint8_t>(pair & 15)),
                       numerics::e2m1_to_float(static_cast<std::uint8_t>(pair >> 4))};
    }
    return table;
}

inline constexpr std::array<std::array<float, 2>, 256> kE2m1Pairs = make_e2m1_pair_table();

// Four codes in the low 16 bits to four floats.
inline void decode_four_e2m1(std::uint32_t codes, float* out) {
    std::memcpy(out, kE2m1Pairs[codes & 0xFFU].data(), sizeof(float) * 2);
    std::memcpy(out + 2, kE2m1Pairs[(codes >> 8) & 0xFFU].data(), sizeof(float) * 2);
}

// A table of nibble pairs, then one multiply.
template <KOrder kOrder>
void decode_fp4_tile_row_in(const std::uint8_t* tile, int row, float* out) {
    for (int quad = 0; quad < 4; ++quad) {
        for (int step = 0; step < 4; ++step) {
            std::uint32_t word;  // little-endian, as the host is
            std::memcpy(&word, tile + fp4_word_offset(row, quad, step), sizeof(word));
            const std::uint32_t codes = fp4_unweave_word(word);
            const FragmentPosition first{quad, step, 0, 0};
            const FragmentPosition second{quad, step, 1, 0};
            decode_four_e2m1(codes, out + k_of_position(kOrder, first));
            decode_four_e2m1(codes >> 16, out + k_of_position(kOrder, second));
        }
    }
    for (int group = 0; group < kGroupsPerChunk; ++group) {
        const float scale = numerics::window_operand_scale(fp4_tile_scale(tile, row, group));
        float* values = out + group * kScaleGroupK;
        for (int k = 0; k < kScaleGroupK; ++k) values[k] *= scale;
    }
}

// The 128 operands e2m1 * 2^(v - 13) of a row, out[k] in natural K order.
// Shapes: tile kFp4TileBytes, out (128).
inline void decode_fp4_tile_row(const std::uint8_t* tile, int row, KOrder order, float* out) {
    if (order == KOrder::kNatural) {
        decode_fp4_tile_row_in<KOrder::kNatural>(tile, row, out);
    } else {
        decode_fp4_tile_row_in<KOrder::kQuadBlock>(tile, row, out);
    }
}

// The 128 E4M3 values of a row, out[k] in natural K order. Shapes: tile kFp8TileBytes, out (128).
inline void decode_fp8_tile_row(const std::uint8_t* tile, int row, KOrder order, float* out) {
    for (int k = 0; k < kChunkK; k += 4) {  // four bytes stay together in both orders
        const std::uint8_t* codes = tile + fp8_tile_offset(row, k, order);
        for (int i = 0; i < 4; ++i) out[k + i] = numerics::kE4m3Values[codes[i]];
    }
}

}  // namespace gcmoe::layout
