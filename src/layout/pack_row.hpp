// One row of a weight tile from checkpoint bytes: what the host's packer and the device's share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.hpp"
#include "base/math.hpp"
#include "gcmoe/weights.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/scale_window.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::layout {

inline constexpr int kGroupBytes = kScaleGroupK / 2;  // of nibbles

GCMOE_HD constexpr std::size_t index_of(int row, int width, int col) {
    return area(row, width) + size_of(col);
}

// True if all 32 weights of a K32 group are zero, of either sign. Shapes: nibbles (16).
GCMOE_HD inline bool group_is_zero(const std::uint8_t* nibbles) {
    std::uint64_t words[2];
    memcpy(words, nibbles, sizeof(words));
    return ((words[0] | words[1]) & 0x7777777777777777ULL) == 0;
}

// Sixteen bits: the four consecutive weights that start at k, k a multiple of 4.
GCMOE_HD constexpr std::uint32_t four_nibbles(const std::uint8_t* nibbles, int k) {
    return nibbles[k / 2] | static_cast<std::uint32_t>(nibbles[k / 2 + 1]) << 8;
}

// The nibbles of one tile row as it stores them. Shapes: nibbles (64), even k in the low nibble;
// words (16), word 4 * quad + step at fp4_word_offset(row, quad, step).
GCMOE_HD constexpr void weave_tile_row(const std::uint8_t* nibbles, KOrder order,
                                       std::uint32_t* words) {
    for (int quad = 0; quad < 4; ++quad) {
        for (int step = 0; step < 4; ++step) {
            const int k = k_of_position(order, FragmentPosition{quad, step, 0, 0});
            const int k_second = k_of_position(order, FragmentPosition{quad, step, 1, 0});
            words[4 * quad + step] =
                fp4_weave_word(four_nibbles(nibbles, k) | four_nibbles(nibbles, k_second) << 16);
        }
    }
}

// The window positions v of one tile row: 0 for groups of zeros and for codes below the window.
// False if a code lies above it. Shapes: codes, is_zero, positions (4).
GCMOE_HD constexpr bool window_positions(const std::uint8_t* codes, const bool* is_zero, int base,
                                         std::uint8_t* positions) {
    bool fits = true;
    for (int group = 0; group < kGroupsPerChunk; ++group) {
        const int v = is_zero[group] || codes[group] < base ? 0 : codes[group] - base;
        positions[group] = static_cast<std::uint8_t>(v);
        fits = fits && v < numerics::kWindowOctaves;
    }
    return fits;
}

// --- FP8 -------------------------------------------------------------------------------------

// Where the scales of a grid stand: entry (row / rows_per_scale, col / cols_per_scale).
struct GridSteps {
    int rows_per_scale;
    int cols_per_scale;
    bool is_fp32;
};

GCMOE_HD constexpr GridSteps grid_steps(ScaleGrid grid) {
    switch (grid) {
        case ScaleGrid::kFp32Block128:
            return GridSteps{128, 128, true};
        case ScaleGrid::kUe8m0Block128:
            return GridSteps{128, 128, false};
        case ScaleGrid::kUe8m0Block32:
            return GridSteps{32, 32, false};
        case ScaleGrid::kUe8m0Row32:
            return GridSteps{1, 32, false};
    }
    return GridSteps{128, 128, false};
}

GCMOE_HD inline float grid_scale(const Fp8View& view, const GridSteps& steps, std::size_t entry) {
    if (!steps.is_fp32) {
        return numerics::ue8m0_to_float(static_cast<const std::uint8_t*>(view.scales)[entry]);
    }
    float value;  // the bytes of a file need not be aligned
    memcpy(&value, static_cast<const std::uint8_t*>(view.scales) + entry * sizeof(float),
           sizeof(float));
    return value;
}

// One row of one FP8 tile, natural order, and its scales. Shapes: tile_row (128), scales (groups).
GCMOE_HD inline void store_fp8_row(const Fp8View& view, int row, int chunk, std::uint8_t* tile_row,
                                   float* scales) {
    const std::uint8_t* codes = view.codes + index_of(row, view.cols, chunk * kChunkK);
    for (int k = 0; k < kChunkK; k += 4) {  // four bytes stay together
        memcpy(tile_row + fp8_tile_offset(0, k, KOrder::kNatural), codes + k, 4);
    }
    const GridSteps steps = grid_steps(view.grid);
    const int grid_cols = ceil_div(view.cols, steps.cols_per_scale);
    const int groups = kChunkK / steps.cols_per_scale;
    for (int group = 0; group < groups; ++group) {
        scales[group] = grid_scale(
            view, steps, index_of(row / steps.rows_per_scale, grid_cols, chunk * groups + group));
    }
}

}  // namespace gcmoe::layout
