#include "checkpoint/stored_source.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/bf16.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

void decode(const Mxfp4View& view, int row, float* out) {
    const std::uint8_t* nibbles = view.nibbles + area(row, view.cols / 2);
    const std::uint8_t* scales = view.scales + area(row, view.cols / numerics::kMxfp4Group);
    for (int group = 0; group < view.cols / numerics::kMxfp4Group; ++group) {
        const float scale = numerics::ue8m0_to_float(scales[group]);
        for (int idx = 0; idx < numerics::kMxfp4Group; idx += 2) {
            const std::array<float, 2>& pair = layout::kE2m1Pairs[*nibbles++];
            *out++ = pair[0] * scale;
            *out++ = pair[1] * scale;
        }
    }
}

float scale_at(const Fp8View& view, std::size_t entry) {
    if (view.grid == ScaleGrid::kFp32Block128) {
        return static_cast<const float*>(view.scales)[entry];
    }
    return numerics::ue8m0_to_float(static_cast<const std::uint8_t*>(view.scales)[entry]);
}

void decode(const Fp8View& view, int row, float* out) {
    const GridBlock block = grid_block(view.grid);
    const std::uint8_t* codes = view.codes + area(row, view.cols);
    std::size_t entry = area(row / block.rows, ceil_div(view.cols, block.cols));
    for (int begin = 0; begin < view.cols; begin += block.cols) {
        const float scale = scale_at(view, entry++);
        const int end = std::min(begin + block.cols, view.cols);
        for (int col = begin; col < end; ++col) {
            out[col] = numerics::kE4m3Values[codes[col]] * scale;
        }
    }
}

void decode(const Bf16View& view, int row, float* out) {
    const std::uint8_t* bytes = view.bytes + 2 * area(row, view.cols);
    for (int col = 0; col < view.cols; ++col) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes + 2 * col, sizeof(bits));
        out[col] = numerics::bf16_to_float(bits);
    }
}

}  // namespace

int rows_of(const StoredView& view) {
    return std::visit([](const auto& matrix) { return matrix.rows; }, view);
}

int cols_of(const StoredView& view) {
    return std::visit([](const auto& matrix) { return matrix.cols; }, view);
}

void decode_row(const StoredView& view, int row, float* out) {
    std::visit([&](const auto& matrix) { decode(matrix, row, out); }, view);
}

}  // namespace gcmoe::checkpoint
