// The quantisers against the formulas of the design, and at their edges.
#include "numerics/quantise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace gcmoe::numerics {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_group(int n, double log2_size, std::mt19937* random) {
    std::normal_distribution<double> normal;
    std::vector<float> values;
    for (int i = 0; i < n; ++i) {
        values.push_back(static_cast<float>(normal(*random) * std::exp2(log2_size)));
    }
    return values;
}

float plain_amax(const std::vector<float>& values) {
    float amax = 0.0F;
    for (const float x : values) amax = std::fmax(amax, std::fabs(x));
    return amax;
}

// The smallest e with 2^e >= value, by search.
int ceil_log2(float value) {
    int exponent = -126;
    while (exponent < 127 && std::ldexp(1.0, exponent) < static_cast<double>(value)) ++exponent;
    return exponent;
}

TEST(QuantiseE4m3Fp32, FollowsTheFormula) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        const auto values = random_group(128, (round % 60) - 30, &random);
        const float amax = std::fmax(plain_amax(values), 1e-4F);
        std::uint8_t codes[128];
        float scale = 0;
        quantise_e4m3_fp32(values.data(), 128, codes, &scale);
        const volatile float want_scale = amax / 448.0F;
        const volatile float inverse = 448.0F / amax;
        EXPECT_EQ(scale, want_scale);
        for (std::size_t i = 0; i < 128; ++i) {
            const volatile float scaled = values[i] * inverse;
            ASSERT_EQ(codes[i], e4m3_from_float(scaled)) << round << ' ' << i;
            // Nearest: half a step is at most 2^-4 of the value, or 2^-10 of the scale.
            const double error =
                std::abs(static_cast<double>(e4m3_to_float(codes[i])) * static_cast<double>(scale) -
                         static_cast<double>(values[i]));
            const double limit = std::max(std::abs(static_cast<double>(values[i])) / 16,
                                          static_cast<double>(scale) / 1024);
            ASSERT_LE(error, limit * (1 + 1e-6));
        }
    }
}

TEST(QuantiseE4m3Fp32, LargestValueBecomes448) {
    float values[4] = {3.0F, -7.25F, 0.5F, 0.0F};
    std::uint8_t codes[4];
    float scale = 0;
    quantise_e4m3_fp32(values, 4, codes, &scale);
    EXPECT_EQ(codes[1], 0xFE);
    EXPECT_EQ(codes[3], 0);
    EXPECT_EQ(scale, 7.25F / 448.0F);
}

TEST(QuantiseE4m3Fp32, InverseIsOneDivision) {
    // 1 / (amax / 448) rounds twice and differs from 448 / amax for some amax.
    int differing = 0;
    for (int i = 1; i <= 2000; ++i) {
        const float amax = static_cast<float>(i) * 0.37F;
        EXPECT_EQ(fp32_inverse_scale(amax), 448.0F / amax);
        differing += 1.0F / fp32_scale(amax) != fp32_inverse_scale(amax);
    }
    EXPECT_GT(differing, 0);
}

TEST(QuantiseE4m3Fp32, FloorAndZeroGroup) {
    const float floor_scale = 1e-4F / 448.0F;
    std::uint8_t codes[8];
    for (const float size : {0.0F, -0.0F, 1e-6F, 9.99e-5F, 1e-4F}) {
        std::vector<float> values(8, 0.0F);
        values[3] = size;
        float scale = 0;
        quantise_e4m3_fp32(values.data(), 8, codes, &scale);
        EXPECT_EQ(scale, floor_scale) << size;
        EXPECT_TRUE(std::isfinite(scale));
        EXPECT_EQ(codes[0], 0);
        EXPECT_EQ(codes[3], e4m3_from_float(size * (448.0F / 1e-4F))) << size;
    }
    EXPECT_EQ(codes[3], 0x7E) << "the floor itself is the top of the grid";
    EXPECT_GT(fp32_scale(std::nextafter(1e-4F, 1.0F)), floor_scale * 0.9999999F);
    EXPECT_EQ(fp32_scale(2e-4F), 2e-4F / 448.0F);
}

TEST(QuantiseE4m3Fp32, NanAndInfinityShow) {
    float values[4] = {1.0F, kNan, 2.0F, 0.0F};
    std::uint8_t codes[4];
    float scale = 0;
    quantise_e4m3_fp32(values, 4, codes, &scale);
    EXPECT_TRUE(std::isnan(scale));
    EXPECT_TRUE(e4m3_is_nan(codes[1]));
    values[1] = -kInfinity;
    quantise_e4m3_fp32(values, 4, codes, &scale);
    EXPECT_EQ(scale, kInfinity);
    EXPECT_TRUE(e4m3_is_nan(codes[1]));  // -infinity * 0
}

TEST(QuantiseE4m3Fp32, TiesGoToEvenCodes) {
    // amax 448: scale and inverse are 1, values are codes' values. 17 = between 16 and 18.
    const float values[6] = {448.0F, 17.0F, 19.0F, -17.0F, 0.0009765625F, 0.0029296875F};
    std::uint8_t codes[6];
    float scale = 0;
    quantise_e4m3_fp32(values, 6, codes, &scale);
    EXPECT_EQ(scale, 1.0F);
    EXPECT_EQ(e4m3_to_float(codes[1]), 16.0F);
    EXPECT_EQ(e4m3_to_float(codes[2]), 20.0F);
    EXPECT_EQ(e4m3_to_float(codes[3]), -16.0F);
    EXPECT_EQ(codes[4], 0);  // half of 2^-9
    EXPECT_EQ(codes[5], 2);  // one and a half of 2^-9
}

TEST(QuantiseE4m3Ue8m0, FollowsTheFormula) {
    std::mt19937 random(2);
    for (int round = 0; round < 400; ++round) {
        const auto values = random_group(32, (round % 200) - 100, &random);
        const volatile float ratio = std::fmax(plain_amax(values), 1e-4F) / 448.0F;
        const int exponent = ceil_log2(ratio);
        std::uint8_t codes[32];
        std::uint8_t scale_code = 0;
        quantise_e4m3_ue8m0(values.data(), 32, codes, &scale_code);
        ASSERT_EQ(scale_code, exponent + 127) << round;
        for (std::size_t i = 0; i < 32; ++i) {
            const float scaled =
                static_cast<float>(std::ldexp(static_cast<double>(values[i]), -exponent));
            ASSERT_EQ(codes[i], e4m3_from_float(scaled)) << round << ' ' << i;
        }
    }
}

TEST(QuantiseE4m3Ue8m0, ScaleStepsAtExactPowers) {
    EXPECT_EQ(ue8m0_scale_code(448.0F), 127);
    EXPECT_EQ(ue8m0_scale_code(std::nextafter(448.0F, 1e9F)), 128);
    EXPECT_EQ(ue8m0_scale_code(std::nextafter(448.0F, 0.0F)), 127);
    EXPECT_EQ(ue8m0_scale_code(224.0F), 126);
    EXPECT_EQ(ue8m0_scale_code(0.0F), ue8m0_scale_code(1e-4F));
    EXPECT_EQ(ue8m0_scale_code(0.0F), ceil_log2(1e-4F / 448.0F) + 127);
    EXPECT_EQ(ue8m0_scale_code(std::numeric_limits<float>::max()), 247);
    EXPECT_EQ(ue8m0_scale_code(kInfinity), 254);
    EXPECT_EQ(ue8m0_scale_code(kNan), 254);
}

TEST(QuantiseE4m3Ue8m0, ZeroNanAndInfinity) {
    std::vector<float> values(32, 0.0F);
    std::uint8_t codes[32];
    std::uint8_t scale_code = 0;
    quantise_e4m3_ue8m0(values.data(), 32, codes, &scale_code);
    EXPECT_GE(scale_code, 1);
    EXPECT_LE(scale_code, 254);
    for (const std::uint8_t code : codes) EXPECT_EQ(code, 0);
    values[5] = kNan;
    quantise_e4m3_ue8m0(values.data(), 32, codes, &scale_code);
    EXPECT_TRUE(e4m3_is_nan(codes[5]));
    EXPECT_LE(scale_code, 254);
    values[5] = kInfinity;
    quantise_e4m3_ue8m0(values.data(), 32, codes, &scale_code);
    EXPECT_EQ(scale_code, 254);
    EXPECT_EQ(codes[5], 0x7E);  // 448 * 2^127 is infinite again in FP32
}

TEST(QuantiseMxfp4, FollowsTheFormula) {
    std::mt19937 random(3);
    for (int round = 0; round < 400; ++round) {
        const auto values = random_group(32, (round % 60) - 30, &random);
        const volatile float ratio = std::fmax(plain_amax(values), 1e-4F) / 6.0F;
        const int exponent = ceil_log2(ratio);
        std::uint8_t bytes[16];
        std::uint8_t scale_code = 0;
        quantise_mxfp4(values.data(), bytes, &scale_code);
        ASSERT_EQ(scale_code, exponent + 127);
        for (std::size_t i = 0; i < 32; ++i) {
            const auto nibble =
                static_cast<std::uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
            const auto scaled =
                static_cast<float>(std::ldexp(static_cast<double>(values[i]), -exponent));
            ASSERT_EQ(nibble, e2m1_from_float(scaled)) << round << ' ' << i;
        }
    }
}

TEST(QuantiseMxfp4, TiesZerosAndOrder) {
    std::vector<float> values(32, 0.0F);
    std::uint8_t bytes[16];
    std::uint8_t scale_code = 0;
    quantise_mxfp4(values.data(), bytes, &scale_code);
    for (const std::uint8_t byte : bytes) EXPECT_EQ(byte, 0);
    EXPECT_EQ(scale_code, ceil_log2(1e-4F / 6.0F) + 127);
    values[0] = 6.0F;
    values[1] = -5.0F;
    values[2] = -0.2F;
    values[3] = 0.75F;
    quantise_mxfp4(values.data(), bytes, &scale_code);
    EXPECT_EQ(scale_code, 127);
    EXPECT_EQ(bytes[0], 0xE7);  // 6 low, -4 high
    EXPECT_EQ(bytes[1], 0x10);  // no negative zero; 0.75 to 0.5
}

TEST(GroupAmax, TakesMagnitudesAndPropagatesNan) {
    const float values[5] = {1.0F, -4.0F, 3.0F, kNan, 2.0F};
    EXPECT_EQ(group_amax(values, 3), 4.0F);
    EXPECT_EQ(group_amax(values, 0), 0.0F);
    EXPECT_TRUE(std::isnan(group_amax(values, 5)));
    EXPECT_TRUE(std::isnan(group_amax(values + 3, 2)));
}

}  // namespace
}  // namespace gcmoe::numerics
