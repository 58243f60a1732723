// The FP4 decode and the promotion of role 2, executed on the host and compared with numerics/ and
// layout/.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/gemm/sm90_math.cuh"
#include "layout/weight_tile.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e5m2.hpp"
#include "numerics/hash.hpp"
#include "numerics/scale_window.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::cuda::gemm {
namespace {

// The operand that numerics/ promises for a code and a window position.
float operand(std::uint32_t code, std::uint32_t v) {
    return numerics::e2m1_to_float(static_cast<std::uint8_t>(code)) *
           numerics::window_operand_scale(static_cast<std::uint8_t>(v));
}

TEST(HostDecode, TableHoldsEveryMagnitudeOfEveryWindowPosition) {
    for (std::uint32_t v = 0; v < numerics::kWindowOctaves; ++v) {
        const MagnitudeTable table = magnitude_table(v);
        for (std::uint32_t code = 0; code < 8; ++code) {
            const std::uint32_t word = code < 4 ? table.low : table.high;
            const auto byte = static_cast<std::uint8_t>(word >> (8 * (code % 4)));
            EXPECT_EQ(numerics::e5m2_to_float(byte), operand(code, v)) << code << " at " << v;
        }
    }
}

TEST(HostDecode, WordsOfAllCodesInAllPlaces) {
    for (std::uint32_t v = 0; v < numerics::kWindowOctaves; ++v) {
        for (std::uint32_t shift = 0; shift < 16; ++shift) {
            std::uint32_t codes = 0;
            for (std::uint32_t n = 0; n < 8; ++n) codes |= ((n * 3 + shift) % 16) << (4 * n);
            std::uint32_t operands[2];
            decode_word(layout::fp4_weave_word(codes), magnitude_table(v), operands);
            for (std::uint32_t n = 0; n < 8; ++n) {
                const auto byte = static_cast<std::uint8_t>(operands[n / 4] >> (8 * (n % 4)));
                const std::uint32_t code = codes >> (4 * n) & 0xFU;
                const float value = numerics::e5m2_to_float(byte);
                EXPECT_EQ(numerics::float_to_bits(value), numerics::float_to_bits(operand(code, v)))
                    << "weight " << n << ", code " << code << ", v " << v;
            }
        }
    }
}

// A whole tile, both orders of K: what lane (w, g, q) holds against layout's decode of the row.
template <bool kNatural>
void expect_tile_decoded() {
    constexpr auto kOrder = kNatural ? layout::KOrder::kNatural : layout::KOrder::kQuadBlock;
    std::vector<std::uint8_t> tile(layout::kFp4TileBytes);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        const auto word = static_cast<std::uint8_t>(numerics::splitmix64(i));
        const bool is_scale = i >= layout::kFp4NibbleBytes;
        tile[i] = is_scale ? static_cast<std::uint8_t>(word % numerics::kWindowOctaves) : word;
    }
    for (std::uint32_t thread = 0; thread < 128; ++thread) {
        const MathThread me{0, thread / 32, thread % 32 / 4, thread % 4};
        ChunkOperands operands;
        decode_tile<kNatural>(tile.data(), me, &operands);
        for (std::uint32_t half = 0; half < 2; ++half) {
            float row[layout::kChunkK];
            const auto row_idx = static_cast<int>(me.row(half));
            layout::decode_fp4_tile_row(tile.data(), row_idx, kOrder, row);
            for (std::uint32_t at = 0; at < 32; ++at) {
                const std::uint32_t step = at / 8;
                const std::uint32_t word = operands.a[step][at % 8 / 4 * 2 + half];
                const auto byte = static_cast<std::uint8_t>(word >> (8 * (at % 4)));
                const layout::FragmentPosition place{static_cast<int>(me.q), static_cast<int>(step),
                                                     static_cast<int>(at % 8 / 4),
                                                     static_cast<int>(at % 4)};
                const int k = layout::k_of_position(kOrder, place);
                ASSERT_EQ(numerics::float_to_bits(numerics::e5m2_to_float(byte)),
                          numerics::float_to_bits(row[k]))
                    << "thread " << thread << ", row " << row_idx << ", k " << k;
            }
        }
    }
}

TEST(HostDecode, TileInQuadBlockOrder) { expect_tile_decoded<false>(); }
TEST(HostDecode, TileInNaturalOrder) { expect_tile_decoded<true>(); }

TEST(HostDecode, Ue8m0ValuesOfAllCodes) {
    for (std::uint32_t code = 0; code < 255; ++code) {
        EXPECT_EQ(ue8m0_value(code), numerics::ue8m0_to_float(static_cast<std::uint8_t>(code)));
    }
}

// Each product is rounded before it is added, token scale first, then the row's factor.
TEST(HostPromotion, RoundsProductsInTheDocumentedOrder) {
    constexpr std::uint32_t kN = 16;
    const MathThread me{0, 1, 5, 2};
    float part[kN / 2];
    float plain[kN / 2];
    float rows[kN / 2];
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        part[i] = numerics::hash_normal(i);
        plain[i] = rows[i] = numerics::hash_normal(100 + i);
    }
    const auto scale_of = [](std::uint32_t token) { return numerics::hash_normal(200 + token); };
    const float factor[2] = {1.0F / 3, 5.0F / 7};
    float want_plain[kN / 2];
    float want_rows[kN / 2];
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        const std::uint32_t token = 8 * (i / 4) + 2 * me.q + i % 2;
        const volatile float scaled = part[i] * scale_of(token);
        const volatile float with_row = scaled * factor[i % 4 / 2];
        want_plain[i] = plain[i] + scaled;
        want_rows[i] = rows[i] + with_row;
    }
    promote<kN>(part, scale_of, me, plain);
    promote_rows<kN>(part, scale_of, me, factor, rows);
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        EXPECT_EQ(plain[i], want_plain[i]) << i;
        EXPECT_EQ(rows[i], want_rows[i]) << i;
    }
}

}  // namespace
}  // namespace gcmoe::cuda::gemm
