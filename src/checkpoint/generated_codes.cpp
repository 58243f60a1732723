#include "checkpoint/generated_codes.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/check.hpp"
#include "base/math.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

// The sum inside numerics::hash_normal, before it becomes a float (a test holds the two together).
constexpr unsigned hash_sum(std::uint64_t word) {
    const std::uint64_t bytes = numerics::splitmix64(word);
    const std::uint64_t pairs =
        (bytes & 0x00FF00FF00FF00FFULL) + ((bytes >> 8) & 0x00FF00FF00FF00FFULL);
    return static_cast<unsigned>((pairs * 0x0001000100010001ULL) >> 48);
}

// What one unit of a sum is worth in hash_normal: its value at a word whose sum is the mean plus
// one.
constexpr float normal_of_unit() {
    std::uint64_t word = 0;
    while (hash_sum(word) != kSumMean + 1) ++word;
    return numerics::hash_normal(word);
}

constexpr float kNormalOfUnit = normal_of_unit();

// The generated weight of a sum.
constexpr float weight_of_sum(int sum) {
    return static_cast<float>(sum - kSumMean) * kNormalOfUnit * kGeneratedWeightDeviation;
}

constexpr float amax_of_magnitude(int magnitude) { return weight_of_sum(kSumMean + magnitude); }

// MXFP4: scale code of a group's largest magnitude, and per scale code the nibble of every sum.
struct Mxfp4Tables {
    static constexpr int kLowestCode = 110;  // the floor of amax gives 112
    static constexpr int kNumCodes = 16;     // the largest sum gives 122

    std::array<std::uint8_t, kNumMagnitudes> code_of_magnitude{};
    std::array<std::array<std::uint8_t, kNumSums>, kNumCodes> nibble_of_sum{};

    Mxfp4Tables() {
        for (int magnitude = 0; magnitude < kNumMagnitudes; ++magnitude) {
            float values[kMxfp4Group] = {amax_of_magnitude(magnitude)};
            std::uint8_t nibbles[kMxfp4Group / 2] = {};
            std::uint8_t* code = &code_of_magnitude[static_cast<std::size_t>(magnitude)];
            numerics::quantise_mxfp4(values, nibbles, code);
            GCMOE_CHECK(*code >= kLowestCode && *code < kLowestCode + kNumCodes, int{*code});
        }
        for (int idx = 0; idx < kNumCodes; ++idx) {
            const float inverse =
                numerics::ue8m0_inverse(static_cast<std::uint8_t>(kLowestCode + idx));
            for (int sum = 0; sum < kNumSums; ++sum) {
                nibble_of_sum[static_cast<std::size_t>(idx)][static_cast<std::size_t>(sum)] =
                    numerics::e2m1_from_float(weight_of_sum(sum) * inverse);
            }
        }
    }
};

const Mxfp4Tables& mxfp4_tables() {
    static const Mxfp4Tables tables;
    return tables;
}

// Sums of num_words words from first_word; returns the largest distance of one from the mean.
inline int fill_sums(std::uint64_t first_word, int num_words, std::uint16_t* sums) {
    int largest = 0;
    for (int idx = 0; idx < num_words; ++idx) {
        const unsigned sum = hash_sum(first_word + static_cast<std::uint64_t>(idx));
        sums[idx] = static_cast<std::uint16_t>(sum);
        largest = std::max(largest, std::abs(static_cast<int>(sum) - kSumMean));
    }
    return largest;
}

}  // namespace

void generate_mxfp4(const ScaleRule& rule, const GeneratedMatrix& matrix, std::uint8_t* nibbles,
                    std::uint8_t* scales) {
    const Mxfp4Tables& tables = mxfp4_tables();
    const int num_groups = matrix.cols / kMxfp4Group;
    std::uint64_t word = matrix.seed;
    for (int row = 0; row < matrix.rows; ++row) {
        for (int group_idx = 0; group_idx < num_groups; ++group_idx) {
            std::uint16_t sums[kMxfp4Group];
            const int magnitude = fill_sums(word, kMxfp4Group, sums);
            word += kMxfp4Group;
            const std::uint8_t code = tables.code_of_magnitude[static_cast<std::size_t>(magnitude)];
            const std::uint8_t* nibble_of_sum =
                tables.nibble_of_sum[static_cast<std::size_t>(code - Mxfp4Tables::kLowestCode)]
                    .data();
            for (int idx = 0; idx < kMxfp4Group; idx += 2) {
                *nibbles++ = static_cast<std::uint8_t>(nibble_of_sum[sums[idx]] |
                                                       (nibble_of_sum[sums[idx + 1]] << 4));
            }
            *scales++ = generated_scale_code(rule, matrix, row, group_idx, code);
        }
    }
}

GridBlock grid_block(ScaleGrid grid) {
    switch (grid) {
        case ScaleGrid::kFp32Block128:
        case ScaleGrid::kUe8m0Block128:
            return {128, 128};
        case ScaleGrid::kUe8m0Block32:
            return {32, 32};
        case ScaleGrid::kUe8m0Row32:
            return {1, 32};
    }
    GCMOE_CHECK(false, static_cast<int>(grid));
}

const SharedCodes::Table& SharedCodes::table(int magnitude) {
    std::unique_ptr<Table>& slot = table_of_magnitude_[static_cast<std::size_t>(magnitude)];
    if (slot == nullptr) {
        slot = std::make_unique<Table>();
        const float amax = amax_of_magnitude(magnitude);
        const float inverse = shared_inverse_scale(grid_, amax);
        for (int sum = 0; sum < kNumSums; ++sum) {
            (*slot)[static_cast<std::size_t>(sum)] =
                numerics::e4m3_from_float(weight_of_sum(sum) * inverse);
        }
    }
    return *slot;
}

void SharedCodes::store_scale(int magnitude, std::size_t scale_idx, void* scales) const {
    const float amax = amax_of_magnitude(magnitude);
    if (grid_ == ScaleGrid::kFp32Block128) {
        static_cast<float*>(scales)[scale_idx] = numerics::fp32_scale(amax);
    } else {
        static_cast<std::uint8_t*>(scales)[scale_idx] = numerics::ue8m0_scale_code(amax);
    }
}

void SharedCodes::generate(const GeneratedMatrix& matrix, std::uint8_t* codes, void* scales) {
    const GridBlock block = grid_block(grid_);
    const auto cols = static_cast<std::size_t>(matrix.cols);
    std::vector<std::uint16_t> sums(static_cast<std::size_t>(block.rows) * cols);
    std::size_t scale_idx = 0;
    for (int first_row = 0; first_row < matrix.rows; first_row += block.rows) {
        const int num_rows = std::min(block.rows, matrix.rows - first_row);
        const std::uint64_t strip_idx = static_cast<std::uint64_t>(first_row) * cols;
        for (int first_col = 0; first_col < matrix.cols; first_col += block.cols) {
            const int num_cols = std::min(block.cols, matrix.cols - first_col);
            int magnitude = 0;
            for (int row = 0; row < num_rows; ++row) {
                const std::size_t idx =
                    static_cast<std::size_t>(row) * cols + static_cast<std::size_t>(first_col);
                magnitude = std::max(
                    magnitude, fill_sums(matrix.seed + strip_idx + idx, num_cols, &sums[idx]));
            }
            const Table& code_of_sum = table(magnitude);
            for (int row = 0; row < num_rows; ++row) {
                const std::size_t idx =
                    static_cast<std::size_t>(row) * cols + static_cast<std::size_t>(first_col);
                std::uint8_t* out = codes + strip_idx + idx;
                for (int col = 0; col < num_cols; ++col) {
                    out[col] = code_of_sum[sums[idx + static_cast<std::size_t>(col)]];
                }
            }
            store_scale(magnitude, scale_idx++, scales);
        }
    }
}

}  // namespace gcmoe::checkpoint
