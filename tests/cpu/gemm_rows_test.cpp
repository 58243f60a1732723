// The GEMM kernels of every SIMD target give the bits of the scalar definition: both tile formats,
// both orders of K, both forms of factors, any number of rows, NaN and extreme scales included.
#include "cpu/gemm_rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/check.hpp"
#include "numerics/bits.hpp"
#include "numerics/e4m3.hpp"
#include "reference/lane_sums.hpp"
#include "support/simd_targets.hpp"

namespace gcmoe::cpu {
namespace {

using layout::KOrder;
using layout::PackedFp8Matrix;
using layout::PackedMatrix;

constexpr int kChunks = 3;
constexpr int kRows = 192;
constexpr std::size_t kTiles = std::size_t{kRows / layout::kTileRows} * kChunks;

struct MatrixForm {
    KOrder order = KOrder::kQuadBlock;
    bool chunk_factors = false;
};

// Any nibbles, window positions up to `span`, factors of any size.
PackedMatrix random_matrix(const MatrixForm& form, unsigned span, unsigned seed) {
    std::mt19937 random(seed);
    PackedMatrix matrix;
    matrix.form = form.chunk_factors ? PackedMatrix::DecodeForm::kChunkFactor
                                     : PackedMatrix::DecodeForm::kRowFactor;
    matrix.rows = kRows;
    matrix.chunks = kChunks;
    matrix.order = form.order;
    matrix.tiles.resize(kTiles * layout::kFp4TileBytes);
    for (auto& byte : matrix.tiles) byte = static_cast<std::uint8_t>(random());
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        for (int i = layout::kFp4NibbleBytes; i < layout::kFp4TileBytes; ++i) {
            auto& position =
                matrix.tiles[tile * layout::kFp4TileBytes + static_cast<std::size_t>(i)];
            position = static_cast<std::uint8_t>(random() % span);
        }
    }
    matrix.factors.resize(form.chunk_factors ? kTiles * layout::kTileRows : std::size_t{kRows});
    for (auto& factor : matrix.factors)
        factor = std::ldexp(1.0F, static_cast<int>(random() % 40) - 20);
    return matrix;
}

PackedFp8Matrix random_fp8_matrix(int groups, unsigned seed) {
    std::mt19937 random(seed);
    PackedFp8Matrix matrix;
    matrix.rows = kRows;
    matrix.chunks = kChunks;
    matrix.scale_groups_per_chunk = groups;
    matrix.tiles.resize(kTiles * layout::kFp8TileBytes);
    for (auto& byte : matrix.tiles) {
        do byte = static_cast<std::uint8_t>(random());
        while (numerics::e4m3_is_nan(byte));
    }
    matrix.scales.resize(kTiles * layout::kTileRows * static_cast<std::size_t>(groups));
    for (auto& scale : matrix.scales) scale = static_cast<float>(random() % 1000 + 1) * 0.37e-3F;
    return matrix;
}

// Activation rows as codes, and in the two forms that kernel and definition take.
class Activations {
  public:
    Activations(int num_rows, ActivationScale format, unsigned seed)
        : num_rows_(num_rows), natural_(size(layout::kChunkK)), scales_(size(4)) {
        values_.resize(size(layout::kChunkK));
        lane_scales_.resize(size(kScalesPerChunk));
        std::mt19937 random(seed);
        for (int t = 0; t < num_rows; ++t) {
            for (int c = 0; c < kChunks; ++c) put(t, c, format, &random);
        }
    }
    [[nodiscard]] ActivationRows rows() {
        return {values_.data(), lane_scales_.data(), num_rows_, kChunks};
    }
    [[nodiscard]] reference::LaneInputs inputs() const {
        return {natural_.data(), scales_.data(), num_rows_, kChunks};
    }
    // The value of the definition at (t, k), the same in both forms.
    void set(KOrder order, int t, int k, float value) {
        natural_[static_cast<std::size_t>(t * kChunks * layout::kChunkK + k)] = value;
        lay_out(order);
    }
    // Puts the values where a matrix of this order meets them.
    void lay_out(KOrder order) {
        for (int t = 0; t < num_rows_; ++t) {
            for (int k = 0; k < kChunks * layout::kChunkK; ++k) {
                const auto at = layout::fragment_position(order, k % layout::kChunkK);
                const int place =
                    ((k / layout::kChunkK * num_rows_ + t) * kLaneK + 4 * at.half + at.byte) *
                        kLanes +
                    4 * at.quad + at.step;
                values_.data()[place] =
                    natural_[static_cast<std::size_t>(t * kChunks * layout::kChunkK + k)];
            }
        }
    }

  private:
    [[nodiscard]] std::size_t size(int per_chunk) const {
        return static_cast<std::size_t>(num_rows_ * kChunks * per_chunk);
    }
    void put(int t, int c, ActivationScale format, std::mt19937* random) {
        for (int k = 0; k < layout::kChunkK; ++k) {
            std::uint8_t code = 0;
            do code = static_cast<std::uint8_t>((*random)());
            while (numerics::e4m3_is_nan(code));
            natural_[static_cast<std::size_t>((t * kChunks + c) * layout::kChunkK + k)] =
                numerics::e4m3_to_float(code);
        }
        const std::uint32_t word =
            format == ActivationScale::kFp32K128
                ? numerics::float_to_bits(1e-3F * static_cast<float>(t + c + 1))
                : 0x70827F00U + static_cast<std::uint32_t>(t + c);
        decode_scale_word(word, format, scales_.data() + (t * kChunks + c) * 4);
        decode_scale_word(word, format,
                          lane_scales_.data() + (c * num_rows_ + t) * kScalesPerChunk);
    }

    int num_rows_;
    std::vector<float> natural_;
    std::vector<float> scales_;
    AlignedFloats values_;
    AlignedFloats lane_scales_;
};

constexpr float kPoison = -12345.0F;

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(numerics::float_to_bits(got[i]), numerics::float_to_bits(want[i]))
            << "sum " << i << ": " << got[i] << " for " << want[i];
    }
}

// All of a matrix, then its middle alone, by kernel and definition.
template <class Multiply, class Matrix>
void compare(const Multiply& multiply, const Matrix& matrix, int num_rows, Activations* x) {
    x->lay_out(matrix.order);
    for (const auto& [first, num] : {std::pair{0, kRows}, std::pair{64, 64}}) {
        const std::size_t size = static_cast<std::size_t>(num * num_rows);
        std::vector<float> want(size, kPoison);
        std::vector<float> got(size + 1, kPoison);
        reference::lane_sums(matrix, first, num, x->inputs(), want.data());
        multiply(matrix, first, num, x->rows(), got.data());
        EXPECT_EQ(got.back(), kPoison) << "wrote past its rows";
        got.pop_back();
        expect_same_bits(got, want);
    }
}

constexpr int kRowCounts[] = {1, 2, 3, 7, 8, 16, 31, 32, 33, 48, 63, 64};

TEST(GemmRows, Fp4IsTheDefinitionInEveryForm) {
    test::for_each_target([] {
        for (const int num_rows : kRowCounts) {
            for (const bool chunk_factors : {false, true}) {
                const auto quad = random_matrix({KOrder::kQuadBlock, chunk_factors}, 27, 5);
                Activations k128(num_rows, ActivationScale::kFp32K128, 6);
                compare(multiply_fp4, quad, num_rows, &k128);
                const auto natural = random_matrix({KOrder::kNatural, chunk_factors}, 27, 7);
                Activations k32(num_rows, ActivationScale::kUe8m0K32, 8);
                compare(multiply_fp4, natural, num_rows, &k32);
                compare(multiply_fp4, natural, num_rows, &k128);
            }
        }
    });
}

TEST(GemmRows, Fp8IsTheDefinitionForBothScaleGrids) {
    test::for_each_target([] {
        for (const int num_rows : kRowCounts) {
            for (const int groups : {1, 4}) {
                const auto matrix = random_fp8_matrix(groups, 9);
                Activations k128(num_rows, ActivationScale::kFp32K128, 10);
                compare(multiply_fp8, matrix, num_rows, &k128);
                Activations k32(num_rows, ActivationScale::kUe8m0K32, 11);
                compare(multiply_fp8, matrix, num_rows, &k32);
            }
        }
    });
}

// A NaN shows in its own row, in every sum of it and in one form; infinities meet as IEEE says.
TEST(GemmRows, NanStaysInItsRow) {
    const auto matrix = random_matrix({}, 27, 12);
    test::for_each_target([&] {
        Activations x(5, ActivationScale::kFp32K128, 13);
        x.set(matrix.order, 2, 200, -std::nanf(""));
        std::vector<float> sums(std::size_t{5} * kRows);
        multiply_fp4(matrix, 0, kRows, x.rows(), sums.data());
        for (int t = 0; t < 5; ++t) {
            for (int row = 0; row < kRows; ++row) {
                const float sum = sums[static_cast<std::size_t>(t * kRows + row)];
                if (t == 2) {
                    ASSERT_EQ(numerics::float_to_bits(sum), 0x7FC00000U) << "row " << row;
                } else {
                    ASSERT_TRUE(std::isfinite(sum)) << "t " << t << ", row " << row;
                }
            }
        }
    });
}

TEST(GemmRows, NoRowsAndTooManyAreBrokenPromises) {
    const auto matrix = random_matrix({}, 27, 14);
    Activations x(1, ActivationScale::kFp32K128, 15);
    ActivationRows rows = x.rows();
    float sum = 0;
    for (const int num_rows : {0, -1, kMaxGemmRows + 1}) {
        rows.num_rows = num_rows;
        EXPECT_THROW(multiply_fp4(matrix, 0, 64, rows, &sum), InternalError);
        EXPECT_THROW(multiply_fp8(random_fp8_matrix(1, 16), 0, 64, rows, &sum), InternalError);
    }
}

// Every code at every place of a ring row, through the swizzle of every row.
TEST(GemmRows, CodesReachTheirLanes) {
    test::for_each_target([] {
        for (const KOrder order : {KOrder::kNatural, KOrder::kQuadBlock}) {
            std::vector<std::uint8_t> chunk(std::size_t{16} * layout::kChunkK);
            for (int first = 0; first < 256; ++first) {
                std::uint8_t codes[layout::kChunkK];
                for (int k = 0; k < layout::kChunkK; ++k) {
                    codes[k] = static_cast<std::uint8_t>(first + k);
                }
                const int row = first % 16;
                layout::store_chunk_row(chunk.data(), row, order, codes);
                CodeWords words;
                load_code_words(chunk.data(), row, &words);
                AlignedFloats values;
                values.resize(layout::kChunkK);
                decode_codes(words, values.data());
                for (int k = 0; k < layout::kChunkK; ++k) {
                    const auto at = layout::fragment_position(order, k);
                    const int place = (4 * at.half + at.byte) * kLanes + 4 * at.quad + at.step;
                    ASSERT_EQ(numerics::float_to_bits(values.data()[place]),
                              numerics::float_to_bits(numerics::e4m3_to_float(codes[k])))
                        << "code " << int{codes[k]} << ", k " << k << ", row " << row;
                }
            }
        }
    });
}

}  // namespace
}  // namespace gcmoe::cpu
