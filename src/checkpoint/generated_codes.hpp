// Quantised generated weights in bulk: the bytes of generated_element.hpp, by tables.
//
// A generated weight takes one of 2041 values (a sum of eight bytes), so each quantiser is a table
// from sum to code, one table per scale.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "checkpoint/generated_element.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

inline constexpr int kSumMean = 1020;
inline constexpr int kNumSums = 2 * kSumMean + 1;  // 0..2040
inline constexpr int kNumMagnitudes = kSumMean + 1;

// Fills nibbles (rows, cols / 2) and scales (rows, cols / 32) of a routed matrix, equal to
// generate_mxfp4_group of every group.
void generate_mxfp4(const ScaleRule& rule, const GeneratedMatrix& matrix, std::uint8_t* nibbles,
                    std::uint8_t* scales);

// Rows and columns that share one scale.
struct GridBlock {
    int rows;
    int cols;
};
[[nodiscard]] GridBlock grid_block(ScaleGrid grid);

// Fills codes (rows, cols) of a shared matrix and its scales (ceil(rows / block), ceil(cols /
// block)): per block amax / 448, as a float or rounded up to a power of two.
class SharedCodes {
  public:
    explicit SharedCodes(ScaleGrid grid) : grid_(grid) {}
    void generate(const GeneratedMatrix& matrix, std::uint8_t* codes, void* scales);

  private:
    using Table = std::array<std::uint8_t, kNumSums>;  // sum -> E4M3 code
    const Table& table(int magnitude);
    void store_scale(int magnitude, std::size_t scale_idx, void* scales) const;

    ScaleGrid grid_;
    std::array<std::unique_ptr<Table>, kNumMagnitudes> table_of_magnitude_;
};

}  // namespace gcmoe::checkpoint
