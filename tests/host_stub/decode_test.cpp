// The FP4 decode and the promotions of role 2, executed on the host and compared with numerics/ and
// layout/; the stand-ins for the conversions against numerics/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda/gemm/sm90_math_steps.cuh"
#include "host_stub/host_cta.hpp"
#include "layout/weight_tile.hpp"
#include "numerics/bf16.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
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

// Runs `body(shared memory)` as the one thread of a CTA: what reads shared memory by address needs
// one.
void in_a_cta(std::size_t shared_bytes, const std::function<void(std::uint8_t*)>& body) {
    host_stub::Machine machine;
    machine.add_cta(0, 1, 1, shared_bytes, body);
    machine.run();
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
        const MathThread me = MathThread::at(thread);
        ChunkOperands operands;
        in_a_cta(tile.size(), [&](std::uint8_t* shared) {
            std::copy(tile.begin(), tile.end(), shared);
            decode_tile<kNatural>(read_tile<kNatural>(ptx::shared_address(shared), me), &operands);
        });
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

constexpr std::uint32_t kN = 16;
const MathThread kMe = MathThread::at(32 + 4 * 5 + 2);  // warp 1, g 5, q 2

// A chain's sums and accumulators of one thread; element i belongs to column token(i).
struct Sums {
    float part[kN / 2];
    float before[kN / 2];
    float after[kN / 2];
    Sums() {
        for (std::uint32_t i = 0; i < kN / 2; ++i) {
            part[i] = numerics::hash_normal(i);
            before[i] = after[i] = numerics::hash_normal(100 + i);
        }
    }
    static std::uint32_t token(std::uint32_t i) { return 8 * (i / 4) + 2 * kMe.q + i % 2; }
};

// One rounding, and no other, for a product and its sum.
TEST(HostPromotion, MultipliesByTheTokensScaleWithOneRounding) {
    Sums sums;
    alignas(8) std::uint32_t scales[kN];
    for (std::uint32_t token = 0; token < kN; ++token) {
        scales[token] = numerics::float_to_bits(numerics::hash_normal(200 + token));
    }
    in_a_cta(sizeof(scales), [&](std::uint8_t* shared) {
        std::memcpy(shared, scales, sizeof(scales));
        promote<kN>(sums.part, ptx::shared_address(shared), kMe, sums.after);
    });
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        const float scale = numerics::bits_to_float(scales[Sums::token(i)]);
        EXPECT_EQ(sums.after[i], std::fma(sums.part[i], scale, sums.before[i])) << i;
    }
}

// Token scale first, rounded; then the row's factor, which is rounded with the sum.
template <bool kK32>
void expect_rows_promoted(std::uint32_t step) {
    Sums sums;
    std::uint32_t words[kN];
    float scales[kN];
    for (std::uint32_t token = 0; token < kN; ++token) {
        scales[token] = numerics::hash_normal(200 + token);
        words[token] = numerics::float_to_bits(scales[token]);
        if (!kK32) continue;
        words[token] = static_cast<std::uint32_t>(numerics::splitmix64(token)) & 0x7F7F7F7FU;
        const std::uint32_t code = words[token] >> (8 * step) & 0xFFU;
        scales[token] = numerics::ue8m0_to_float(static_cast<std::uint8_t>(code));
    }
    const float factor[2] = {1.0F / 3, 5.0F / 7};
    in_a_cta(sizeof(words), [&](std::uint8_t* shared) {
        std::memcpy(shared, words, sizeof(words));
        promote_rows<kN, kK32>(sums.part, ptx::shared_address(shared), step, kMe, factor,
                               sums.after);
    });
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        const float scaled = sums.part[i] * scales[Sums::token(i)];
        EXPECT_EQ(sums.after[i], std::fma(scaled, factor[i % 4 / 2], sums.before[i])) << i;
    }
}

TEST(HostPromotion, MultipliesByRowsFactorsWithFp32Scales) { expect_rows_promoted<false>(0); }
TEST(HostPromotion, MultipliesByRowsFactorsWithUe8m0Scales) {
    for (std::uint32_t step = 0; step < 4; ++step) expect_rows_promoted<true>(step);
}

// Every upper half of a float, with lower halves at and around the ties of both formats.
template <class Check>
void for_many_floats(const Check& check) {
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
        for (const std::uint32_t lower : {0x0U, 0x1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
            check(numerics::bits_to_float(upper << 16 | lower));
        }
    }
}

TEST(HostConversions, E4m3AsNumericsSaysAndNanAs7f) {
    for_many_floats([](float value) {
        const std::uint32_t want = std::isnan(value) ? 0x7FU : numerics::e4m3_from_float(value);
        ASSERT_EQ(ptx::e4m3_pair(value, 1.0F), 0x3800U | want) << value;
        ASSERT_EQ(ptx::e4m3_pair(-2.0F, value), 0xC0U | want << 8) << value;
    });
}

TEST(HostConversions, Bf16AsNumericsSaysAndNanAs7fff) {
    for_many_floats([](float value) {
        const std::uint32_t want = std::isnan(value) ? 0x7FFFU : numerics::bf16_from_float(value);
        ASSERT_EQ(ptx::bf16_pair(value, 1.0F), 0x3F800000U | want) << value;
        ASSERT_EQ(ptx::bf16_pair(-2.0F, value), 0xC000U | want << 16) << value;
    });
}

}  // namespace
}  // namespace gcmoe::cuda::gemm
