// Random checkpoint matrices, and what they say in plain numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gcmoe/weights.hpp"

namespace gcmoe::testing {

// An MXFP4 matrix that owns its bytes.
struct Mxfp4Bytes {
    int rows = 0;
    int cols = 0;
    std::vector<std::uint8_t> nibbles;
    std::vector<std::uint8_t> scales;

    [[nodiscard]] Mxfp4View view() const { return {nibbles.data(), scales.data(), rows, cols}; }
    std::uint8_t& scale(int row, int group) {
        return scales[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols / 32) +
                      static_cast<std::size_t>(group)];
    }
    void fill_group(int row, int group, std::uint8_t byte) {
        const std::size_t first =
            static_cast<std::size_t>(row) * static_cast<std::size_t>(cols / 2) +
            static_cast<std::size_t>(group) * 16;
        for (std::size_t i = 0; i < 16; ++i) nibbles[first + i] = byte;
    }
    [[nodiscard]] int code(int row, int col) const {
        return scales[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols / 32) +
                      static_cast<std::size_t>(col / 32)];
    }
    [[nodiscard]] unsigned nibble(int row, int col) const {
        const unsigned byte =
            nibbles[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols / 2) +
                    static_cast<std::size_t>(col / 2)];
        return col % 2 == 0 ? byte % 16 : byte / 16;
    }
    [[nodiscard]] double value(int row, int col) const {
        static constexpr double kGrid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const unsigned bits = nibble(row, col);
        const double sign = bits >= 8 ? -1.0 : 1.0;
        return sign * kGrid[bits % 8] * std::exp2(code(row, col) - 127);
    }
};

// Random nibbles, scale codes uniform in low..high.
inline Mxfp4Bytes make_mxfp4(int rows, int cols, int low, int high, unsigned seed) {
    std::mt19937 random(seed);
    Mxfp4Bytes out;
    out.rows = rows;
    out.cols = cols;
    out.nibbles.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / 2));
    out.scales.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / 32));
    for (auto& byte : out.nibbles) byte = static_cast<std::uint8_t>(random());
    const unsigned span = static_cast<unsigned>(high - low + 1);
    for (auto& code : out.scales) {
        code = static_cast<std::uint8_t>(static_cast<unsigned>(low) + random() % span);
    }
    return out;
}

// An FP8 matrix that owns its bytes.
struct Fp8Bytes {
    int rows = 0;
    int cols = 0;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    std::vector<std::uint8_t> codes;
    std::vector<float> fp32_scales;
    std::vector<std::uint8_t> ue8m0_scales;

    [[nodiscard]] bool is_fp32() const { return grid == ScaleGrid::kFp32Block128; }
    [[nodiscard]] Fp8View view() const {
        const void* scales = is_fp32() ? static_cast<const void*>(fp32_scales.data())
                                       : static_cast<const void*>(ue8m0_scales.data());
        return {codes.data(), scales, grid, rows, cols};
    }
    [[nodiscard]] int row_step() const {
        return grid == ScaleGrid::kUe8m0Row32 ? 1 : grid == ScaleGrid::kUe8m0Block32 ? 32 : 128;
    }
    [[nodiscard]] int col_step() const {
        return grid == ScaleGrid::kUe8m0Row32 || grid == ScaleGrid::kUe8m0Block32 ? 32 : 128;
    }
    // Index of the scale of (row, col).
    [[nodiscard]] std::size_t scale_at(int row, int col) const {
        const int width = (cols + col_step() - 1) / col_step();
        return static_cast<std::size_t>(row / row_step() * width + col / col_step());
    }
    [[nodiscard]] double value(int row, int col) const {
        const unsigned code = codes[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) +
                                    static_cast<std::size_t>(col)];
        const int exponent = static_cast<int>(code >> 3 & 15);
        const double fraction = static_cast<double>(code & 7) / 8;
        const double magnitude =
            exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
        const double scale = is_fp32() ? static_cast<double>(fp32_scales[scale_at(row, col)])
                                       : std::exp2(ue8m0_scales[scale_at(row, col)] - 127);
        return (code >= 128 ? -1 : 1) * magnitude * scale;
    }
};

inline Fp8Bytes make_fp8(int rows, int cols, ScaleGrid grid, unsigned seed) {
    std::mt19937 random(seed);
    Fp8Bytes out;
    out.rows = rows;
    out.cols = cols;
    out.grid = grid;
    out.codes.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    for (auto& code : out.codes) {
        do code = static_cast<std::uint8_t>(random());
        while ((code & 0x7F) == 0x7F);
    }
    const std::size_t num_scales = out.scale_at(rows - 1, cols - 1) + 1;
    for (std::size_t i = 0; i < num_scales; ++i) {
        out.fp32_scales.push_back(1e-3F + static_cast<float>(random() % 100000) * 1e-5F);
        out.ue8m0_scales.push_back(static_cast<std::uint8_t>(100 + random() % 40));
    }
    return out;
}

}  // namespace gcmoe::testing
