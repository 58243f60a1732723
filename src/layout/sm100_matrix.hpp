// One expert matrix, from checkpoint bytes to sm100 tiles and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "layout/pack_matrix.hpp"
#include "layout/sm100_tile.hpp"

namespace gcmoe::layout {

struct Sm100Matrix {
    bool is_first = true;  // gate and up, else down
    bool is_fp8 = false;
    int rows = 0;                      // packed rows, a multiple of 128
    int chunks = 0;                    // K / kChunkK
    std::vector<std::uint8_t> tiles;   // (tiles, kSm100Fp4TileBytes or kSm100Fp8TileBytes)
    std::vector<std::uint8_t> scales;  // (tiles, kSm100ScaleBytes) UE8M0
    std::vector<float> bias;           // (rows) in packed-row order; empty without biases

    [[nodiscard]] int num_tiles() const { return rows / kSm100TileRows * chunks; }
    [[nodiscard]] int tile_bytes() const {
        return is_fp8 ? kSm100Fp8TileBytes : kSm100Fp4TileBytes;
    }
};

// Nibbles and scale codes of MXFP4 as they are: always exact. Leaves out->bias alone. Callers: with
// views whose shapes were checked (rows and cols multiples of 128).
// Errors: kBadCheckpoint for scale code 255, naming owner, matrix, row and K32 group.
Status pack_sm100(const RoutedSource& source, Sm100Matrix* out, PackReport* report);

// E4M3 codes as they are, the scale grid expanded to a code per row and K32. An FP32 scale that is
// no power of two is an error, or with allow_inexact raised to the next one and the codes rounded
// anew and counted.
// Errors: kBadCheckpoint as pack_fp8_matrix, kInexact with matrix, grid entry and scale.
Status pack_sm100(const SharedSource& source, bool allow_inexact, Sm100Matrix* out,
                  PackReport* report);

// The checkpoint bytes of one source matrix, row-major.
struct Sm100Unpacked {
    int rows = 0;
    int cols = 0;
    std::vector<std::uint8_t> weights;  // FP4: (rows, cols / 2) nibbles; FP8: (rows, cols) codes
    std::vector<std::uint8_t> scales;   // (rows, cols / 32) UE8M0
};

// The inverse: gate (is_up false) or up of a first matrix; down of a second.
[[nodiscard]] Sm100Unpacked unpack_sm100(const Sm100Matrix& packed, bool is_up);

}  // namespace gcmoe::layout
