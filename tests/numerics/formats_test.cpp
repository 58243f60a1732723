// The small formats, every code, and their encoders against a search over all codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/e2m1.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/e5m2.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::numerics {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The textbook value of a finite code: (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m for e = 0.
double textbook_value(unsigned code, int mantissa_bits, int bias, unsigned sign_bit) {
    const unsigned magnitude = code & (sign_bit - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double fraction = std::ldexp(magnitude & ((1U << mantissa_bits) - 1), -mantissa_bits);
    const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                       : std::ldexp(1.0 + fraction, exponent - bias);
    return (code & sign_bit) != 0 ? -value : value;
}

// Values where rounding is delicate: each code, each midpoint, their float neighbours, and noise.
std::vector<float> probe_values(const std::vector<double>& magnitudes) {
    std::vector<float> positive = {0.0F, std::numeric_limits<float>::denorm_min(),
                                   std::numeric_limits<float>::min(),
                                   std::numeric_limits<float>::max(), kInfinity};
    const auto add = [&](double value) {
        const float x = static_cast<float>(value);
        positive.push_back(x);
        positive.push_back(std::nextafter(x, 0.0F));
        positive.push_back(std::nextafter(x, kInfinity));
    };
    for (std::size_t i = 0; i < magnitudes.size(); ++i) {
        add(magnitudes[i]);
        if (i > 0) add((magnitudes[i - 1] + magnitudes[i]) / 2);
    }
    const double top = magnitudes.back();
    for (const double factor : {1.01, 1.0625, 1.07, 1.125, 1.2, 2.0, 1000.0}) add(top * factor);
    std::mt19937 random(7);
    std::uniform_real_distribution<double> octave(std::log2(magnitudes[1]) - 3, std::log2(top) + 2);
    for (int i = 0; i < 20000; ++i) add(std::exp2(octave(random)));
    std::vector<float> both = positive;
    for (const float x : positive) both.push_back(-x);
    return both;
}

// The magnitude code nearest to |x|. Ties: even code, or the smaller one.
unsigned nearest_code(float x, const std::vector<double>& magnitudes, bool ties_to_even) {
    const double target = std::min(std::abs(static_cast<double>(x)), magnitudes.back());
    unsigned best = 0;
    for (unsigned code = 1; code < magnitudes.size(); ++code) {
        const double distance = std::abs(magnitudes[code] - target);
        const double best_distance = std::abs(magnitudes[best] - target);
        const bool tie_won = ties_to_even && distance == best_distance && code % 2 == 0;
        if (distance < best_distance || tie_won) best = code;
    }
    return best;
}

TEST(E4m3, EveryCodeHasItsTextbookValue) {
    for (unsigned code = 0; code < 256; ++code) {
        const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
        if ((code & 0x7F) == 0x7F) {
            EXPECT_TRUE(std::isnan(value)) << code;
            EXPECT_TRUE(e4m3_is_nan(static_cast<std::uint8_t>(code)));
        } else {
            EXPECT_EQ(value, textbook_value(code, 3, 7, 0x80)) << code;
            EXPECT_FALSE(e4m3_is_nan(static_cast<std::uint8_t>(code)));
            EXPECT_EQ(value, kE4m3Values[code]);
        }
        EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
    EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);
}

TEST(E4m3, EncoderIsNearestEvenAndSaturates) {
    std::vector<double> magnitudes;
    for (unsigned code = 0; code < 0x7F; ++code) {
        magnitudes.push_back(textbook_value(code, 3, 7, 0x80));
    }
    for (const float x : probe_values(magnitudes)) {
        const unsigned want = nearest_code(x, magnitudes, true) | (std::signbit(x) ? 0x80U : 0U);
        ASSERT_EQ(e4m3_from_float(x), want) << x;
    }
    EXPECT_EQ(e4m3_from_float(464.0F), 0x7E);
    EXPECT_EQ(e4m3_from_float(kInfinity), 0x7E);
    EXPECT_EQ(e4m3_from_float(-kInfinity), 0xFE);
    EXPECT_EQ(e4m3_from_float(kNan), 0x7F);
    EXPECT_EQ(e4m3_from_float(-kNan), 0xFF);
}

TEST(E5m2, EveryCodeHasItsTextbookValue) {
    for (unsigned code = 0; code < 256; ++code) {
        const float value = e5m2_to_float(static_cast<std::uint8_t>(code));
        const unsigned magnitude = code & 0x7F;
        if (magnitude > 0x7C) {
            EXPECT_TRUE(std::isnan(value)) << code;
        } else if (magnitude == 0x7C) {
            EXPECT_TRUE(std::isinf(value)) << code;
        } else {
            EXPECT_EQ(value, textbook_value(code, 2, 15, 0x80)) << code;
        }
        EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
    EXPECT_EQ(e5m2_to_float(0x7B), 57344.0F);
}

TEST(E5m2, EncoderIsNearestEvenAndSaturates) {
    std::vector<double> magnitudes;
    for (unsigned code = 0; code < 0x7C; ++code) {
        magnitudes.push_back(textbook_value(code, 2, 15, 0x80));
    }
    for (const float x : probe_values(magnitudes)) {
        const unsigned want = nearest_code(x, magnitudes, true) | (std::signbit(x) ? 0x80U : 0U);
        ASSERT_EQ(e5m2_from_float(x), want) << x;
    }
    EXPECT_EQ(e5m2_from_float(kInfinity), 0x7B);
    EXPECT_EQ(e5m2_from_float(kNan), 0x7F);
    EXPECT_EQ(e5m2_from_float(-kNan), 0xFF);
}

TEST(E2m1, EveryCodeHasItsListedValue) {
    const float listed[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    for (unsigned code = 0; code < 16; ++code) {
        const float value = e2m1_to_float(static_cast<std::uint8_t>(code));
        EXPECT_EQ(value, code < 8 ? listed[code] : -listed[code - 8]) << code;
        EXPECT_EQ(std::signbit(value), code >= 8) << code;
        EXPECT_EQ(value, textbook_value(code, 1, 1, 8)) << code;
    }
}

TEST(E2m1, EncoderSendsTiesToTheSmallerMagnitudeAndHasNoNegativeZero) {
    const std::vector<double> magnitudes = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    for (const float x : probe_values(magnitudes)) {
        const unsigned magnitude = nearest_code(x, magnitudes, false);
        const unsigned want = magnitude | (std::signbit(x) && magnitude != 0 ? 8U : 0U);
        ASSERT_EQ(e2m1_from_float(x), want) << x;
    }
    EXPECT_EQ(e2m1_from_float(5.0F), 6);    // 4, not 6
    EXPECT_EQ(e2m1_from_float(-2.5F), 12);  // -2, not -3
    EXPECT_EQ(e2m1_from_float(-0.25F), 0);
    EXPECT_EQ(e2m1_from_float(-0.0F), 0);
    EXPECT_EQ(e2m1_from_float(kNan), 7);
}

TEST(Ue8m0, EveryCodeIsAPowerOfTwo) {
    for (int code = 0; code < 255; ++code) {
        EXPECT_EQ(ue8m0_to_float(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127));
    }
    EXPECT_TRUE(std::isnan(ue8m0_to_float(kUe8m0Nan)));
}

TEST(Ue8m0, CeilIsTheSmallestPowerNotBelow) {
    const auto search = [](float value) {
        int code = 1;
        while (code < 254 && std::ldexp(1.0, code - 127) < static_cast<double>(value)) ++code;
        return code;
    };
    std::vector<float> values = {0.0F,
                                 -0.0F,
                                 -3.0F,
                                 kInfinity,
                                 -kInfinity,
                                 1e-40F,
                                 3e-39F,
                                 std::numeric_limits<float>::denorm_min(),
                                 std::numeric_limits<float>::max()};
    for (int code = 0; code < 255; ++code) {
        const float power = ue8m0_to_float(static_cast<std::uint8_t>(code));
        for (const float x :
             {power, std::nextafter(power, 0.0F), std::nextafter(power, kInfinity), power * 1.5F}) {
            values.push_back(x);
        }
    }
    for (const float x : values) EXPECT_EQ(ue8m0_ceil(x), search(x)) << x;
    EXPECT_EQ(ue8m0_ceil(kNan), 254);
    EXPECT_EQ(ue8m0_ceil(-kNan), 254);
}

TEST(Ue8m0, ExactTakesPowersOfTwoAndNothingElse) {
    for (int code = 0; code < 255; ++code) {
        const float power = ue8m0_to_float(static_cast<std::uint8_t>(code));
        std::uint8_t found = 77;
        EXPECT_TRUE(ue8m0_exact(power, &found)) << code;
        EXPECT_EQ(found, code);
        for (const float x : {-power, std::nextafter(power, 0.0F), std::nextafter(power, kInfinity),
                              power * 1.5F}) {
            found = 77;
            EXPECT_FALSE(ue8m0_exact(x, &found)) << x;
            EXPECT_EQ(found, 77) << "written on failure";
        }
    }
    std::uint8_t found = 77;
    for (const float x : {0.0F, -0.0F, kInfinity, -kInfinity, kNan, -kNan, std::ldexp(1.0F, -128),
                          std::ldexp(1.0F, -149)}) {
        EXPECT_FALSE(ue8m0_exact(x, &found)) << x;
    }
}

TEST(Bf16, EveryPatternComesBack) {
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const auto pattern = static_cast<std::uint16_t>(bits);
        const float value = bf16_to_float(pattern);
        EXPECT_EQ(float_to_bits(value), bits << 16);
        const std::uint16_t back = bf16_from_float(value);
        if (std::isnan(value)) {
            EXPECT_EQ(back, bits | 0x40) << bits;  // quiet
        } else {
            EXPECT_EQ(back, bits);
        }
    }
}

TEST(Bf16, RoundsToNearestEven) {
    for (unsigned bits = 0; bits < 0x7F80; ++bits) {  // each finite positive one and its successor
        const unsigned low = bits << 16;
        const auto up = static_cast<std::uint16_t>(bits + 1);
        const auto down = static_cast<std::uint16_t>(bits);
        const std::uint16_t even = bits % 2 == 0 ? down : up;
        for (const unsigned sign : {0U, 0x80000000U}) {
            const auto signed_code = [&](std::uint16_t code) { return code | (sign >> 16); };
            EXPECT_EQ(bf16_from_float(bits_to_float(sign | low | 0x7FFF)), signed_code(down));
            EXPECT_EQ(bf16_from_float(bits_to_float(sign | low | 0x8000)), signed_code(even));
            EXPECT_EQ(bf16_from_float(bits_to_float(sign | low | 0x8001)), signed_code(up));
        }
    }
    // A NaN whose payload is in the lower half only must not become infinity.
    EXPECT_EQ(bf16_from_float(bits_to_float(0x7F800001U)), 0x7FC0);
    EXPECT_EQ(bf16_from_float(bits_to_float(0xFFFFFFFFU)), 0xFFFF);
}

}  // namespace
}  // namespace gcmoe::numerics
