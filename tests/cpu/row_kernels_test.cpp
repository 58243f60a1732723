// Row kernels of every SIMD target: the codes and bits of src/numerics, element by element.
#include "cpu/row_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "layout/ring.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/quantise.hpp"
#include "numerics/swiglu.hpp"
#include "support/simd_targets.hpp"

namespace gcmoe::cpu {
namespace {

using numerics::bits_to_float;
using numerics::float_to_bits;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Floats of every exponent and the ends of every range; NaN last.
std::vector<float> hard_floats(bool with_nan) {
    std::vector<float> values = {0.0F,      -0.0F,   448.0F,        464.0F,
                                 465.0F,    -448.0F, 0.0009765625F, 0.00146484375F,
                                 0.015625F, 0.0146F, kInfinity,     -kInfinity};
    std::mt19937 random(3);
    while (values.size() < 126) {
        const float value = bits_to_float(static_cast<std::uint32_t>(random()));
        if (value == value) values.push_back(value);
    }
    values.push_back(with_nan ? std::nanf("") : 1.0F);
    values.push_back(with_nan ? -std::nanf("") : -1.0F);
    return values;
}

std::vector<float> normal_floats(float size, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, size);
    std::vector<float> values(layout::kChunk);
    for (float& value : values) value = normal(random);
    return values;
}

void expect_requantised(const std::vector<float>& values, ActivationScale format) {
    std::uint8_t want[layout::kChunk];
    std::uint32_t want_word = 0;
    if (format == ActivationScale::kFp32K128) {
        float scale = 0;
        numerics::quantise_e4m3_fp32(values.data(), layout::kChunk, want, &scale);
        want_word = float_to_bits(scale);
    } else {
        for (int g = 0; g < 4; ++g) {
            std::uint8_t code = 0;
            numerics::quantise_e4m3_ue8m0(values.data() + 32 * g, 32, want + 32 * g, &code);
            want_word |= std::uint32_t{code} << (8 * g);
        }
    }
    std::uint8_t codes[layout::kChunk];
    std::uint32_t word = 0;
    requantise_row(values.data(), format, codes, &word);
    ASSERT_EQ(word, want_word);
    for (int i = 0; i < layout::kChunk; ++i) {
        ASSERT_EQ(int{codes[i]}, int{want[i]}) << values[static_cast<std::size_t>(i)];
    }
}

TEST(RowKernels, RequantiseIsNumerics) {
    test::for_each_target([] {
        for (const auto format : {ActivationScale::kFp32K128, ActivationScale::kUe8m0K32}) {
            for (const float size : {0.0F, 1e-30F, 1e-6F, 1.0F, 300.0F, 1e30F}) {
                for (unsigned seed = 0; seed < 20; ++seed) {
                    expect_requantised(normal_floats(size, seed), format);
                }
            }
            expect_requantised(hard_floats(false), format);
        }
    });
}

// Codes and a scale of NaN; the codes' signs are not compared.
TEST(RowKernels, RequantiseHandsNanOn) {
    test::for_each_target([] {
        std::vector<float> values = normal_floats(1.0F, 1);
        values[77] = bits_to_float(0x7FC00000U);
        expect_requantised(values, ActivationScale::kFp32K128);
        expect_requantised(values, ActivationScale::kUe8m0K32);
    });
}

// Every rounding case of the cast: all floats whose upper 20 bits differ, scaled by exactly 1.
TEST(RowKernels, CastToE4m3IsNumericsForEveryExponent) {
    test::for_each_target([] {
        std::vector<float> values(layout::kChunk, 0.0F);
        for (std::uint32_t upper = 0; upper < 0x43E00U; upper += 127) {
            for (std::uint32_t i = 0; i < 127; ++i) {
                const std::uint32_t low = (upper + i) % 3 == 0 ? 0 : 0x7FFU + i;
                values[i] = bits_to_float(std::min(upper + i, 0x43E00U) << 12 | low);
                if (values[i] > 448.0F) values[i] = 448.0F;
            }
            values[127] = -448.0F;
            expect_requantised(values, ActivationScale::kFp32K128);
        }
    });
}

// Packed rows of the 128 columns' gates and ups.
std::vector<float> packed_sums(const std::vector<float>& gate, const std::vector<float>& up) {
    std::vector<float> sums(std::size_t{2} * layout::kChunk);
    for (int column = 0; column < layout::kChunk; ++column) {
        const auto at = static_cast<std::size_t>(column);
        sums[static_cast<std::size_t>(layout::first_gemm_packed_row({column, false}))] = gate[at];
        sums[static_cast<std::size_t>(layout::first_gemm_packed_row({column, true}))] = up[at];
    }
    return sums;
}

// Units of the FP32 product's last place that the rounding of seven operations and exp() may take;
// the rounding of its argument counts by the argument's size. Where exp() overflows, 1e-35 is 0.
constexpr double kUlp = 1.2e-7;

TEST(RowKernels, ActivationIsWithinItsRoundings) {
    const Activation activations[] = {
        {10.0F, 1.0F, 0.0F}, {7.0F, 1.702F, 1.0F}, {kInfinity, 1.0F, 0.0F}};
    test::for_each_target([&] {
        for (const Activation& activation : activations) {
            for (const float size : {1e-3F, 1.0F, 8.0F, 60.0F}) {
                const auto gate = normal_floats(size, 21);
                const auto up = normal_floats(size, 22);
                const auto sums = packed_sums(gate, up);
                float got[layout::kChunk];
                activate_row({sums.data(), nullptr, 0.75F}, activation, got);
                for (std::size_t i = 0; i < gate.size(); ++i) {
                    const auto g = static_cast<double>(gate[i]);
                    const auto u = static_cast<double>(up[i]);
                    const double want = 0.75 * numerics::swiglu_fp64(g, u, activation);
                    const double argument = std::abs(static_cast<double>(activation.alpha) * g);
                    const double bound = std::abs(want) * kUlp * (6 + argument) + 1e-35;
                    ASSERT_NEAR(static_cast<double>(got[i]), want, bound)
                        << "gate " << g << ", up " << u;
                }
            }
        }
    });
}

TEST(RowKernels, ActivationAtTheEnds) {
    const Activation plain{kInfinity, 1.0F, 0.0F};
    std::vector<float> gate(layout::kChunk, 1.0F);
    std::vector<float> up(layout::kChunk, 2.0F);
    gate[0] = -1e30F;      // exp overflows: a zero
    gate[1] = -kInfinity;  // times 0: NaN
    gate[2] = kInfinity;   // sigmoid 1
    gate[3] = std::nanf("");
    up[4] = -std::nanf("");
    gate[5] = -88.5F;  // sigmoid near the smallest normal number
    test::for_each_target([&] {
        const auto sums = packed_sums(gate, up);
        float got[layout::kChunk];
        activate_row({sums.data(), nullptr, 1.0F}, plain, got);
        EXPECT_EQ(got[0], 0.0F);
        for (const int i : {1, 3, 4}) EXPECT_EQ(float_to_bits(got[i]), 0x7FC00000U) << i;
        EXPECT_EQ(got[2], kInfinity);
        EXPECT_NEAR(got[5] / (2.0 * -88.5 * std::exp(-88.5)), 1.0, 1e-5);
    });
}

// The same bits from every target, biases, clamps and NaN included.
TEST(RowKernels, ActivationHasTheSameBitsEverywhere) {
    const Activation activation{7.0F, 1.702F, 1.0F};
    const auto bias = packed_sums(normal_floats(1.0F, 31), normal_floats(1.0F, 32));
    std::vector<std::vector<std::uint32_t>> seen;
    test::for_each_target([&] {
        std::vector<std::uint32_t> bits;
        for (unsigned seed = 0; seed < 50; ++seed) {
            auto gate = normal_floats(seed % 2 == 0 ? 3.0F : 40.0F, seed);
            auto up = normal_floats(3.0F, seed + 100);
            if (seed == 7) gate = hard_floats(true);
            if (seed == 8) up = hard_floats(true);
            const auto sums = packed_sums(gate, up);
            float got[layout::kChunk];
            activate_row({sums.data(), seed % 3 == 0 ? nullptr : bias.data(), 0.3F}, activation,
                         got);
            for (const float value : got) bits.push_back(float_to_bits(value));
        }
        seen.push_back(bits);
    });
    for (const auto& bits : seen) EXPECT_EQ(bits, seen.front());
}

TEST(RowKernels, Bf16RowsAreNumerics) {
    const std::vector<float> values = hard_floats(true);
    const std::vector<float> bias = normal_floats(1.0F, 41);
    test::for_each_target([&] {
        std::vector<std::uint16_t> out(values.size() + 1, 0xABCD);
        round_to_bf16(values.data(), values.size(), out.data());
        EXPECT_EQ(out.back(), 0xABCD);
        std::vector<float> sum = bias;
        add_bf16_row(out.data(), values.size(), sum.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_EQ(out[i], numerics::bf16_from_float(values[i])) << values[i];
            const float want = bias[i] + numerics::bf16_to_float(out[i]);
            if (want == want) {
                ASSERT_EQ(float_to_bits(sum[i]), float_to_bits(want));
            } else {
                ASSERT_NE(sum[i], sum[i]);
            }
        }
        for (const bool weighs_sum : {false, true}) {
            store_result_row(values.data(), {bias.data(), 0.7F, weighs_sum}, 64, out.data());
            for (std::size_t i = 0; i < 64; ++i) {
                const float want =
                    weighs_sum ? 0.7F * (values[i] + bias[i]) : values[i] + 0.7F * bias[i];
                ASSERT_EQ(out[i], want == want ? numerics::bf16_from_float(want) : 0x7FC0);
            }
        }
    });
}

}  // namespace
}  // namespace gcmoe::cpu
