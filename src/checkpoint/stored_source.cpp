#include "checkpoint/stored_source.hpp"

#include <cstring>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "numerics/bf16.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::checkpoint {
namespace {

std::size_t index_of(int row, int width) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
}

void decode(const Mxfp4View& view, int row, float* out) {
    const std::uint8_t* nibbles = view.nibbles + index_of(row, view.cols / 2);
    const std::uint8_t* scales = view.scales + index_of(row, view.cols / numerics::kMxfp4Group);
    for (int col = 0; col < view.cols; ++col) {
        const unsigned pair = nibbles[col / 2];
        const auto nibble = static_cast<std::uint8_t>(col % 2 == 0 ? pair & 15U : pair >> 4);
        out[col] = numerics::e2m1_to_float(nibble) *
                   numerics::ue8m0_to_float(scales[col / numerics::kMxfp4Group]);
    }
}

void decode(const Fp8View& view, int row, float* out) {
    const GridBlock block = grid_block(view.grid);
    const std::uint8_t* codes = view.codes + index_of(row, view.cols);
    const std::size_t first_scale = index_of(row / block.rows, ceil_div(view.cols, block.cols));
    for (int col = 0; col < view.cols; ++col) {
        const std::size_t entry = first_scale + static_cast<std::size_t>(col / block.cols);
        const float scale =
            view.grid == ScaleGrid::kFp32Block128
                ? static_cast<const float*>(view.scales)[entry]
                : numerics::ue8m0_to_float(static_cast<const std::uint8_t*>(view.scales)[entry]);
        out[col] = numerics::kE4m3Values[codes[col]] * scale;
    }
}

void decode(const Bf16View& view, int row, float* out) {
    const std::uint8_t* bytes = view.bytes + 2 * index_of(row, view.cols);
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
