// E5M2 windows: where they start, what fits, and that every folded operand is exact.
#include "numerics/scale_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numerics/e2m1.hpp"
#include "numerics/e5m2.hpp"

namespace gcmoe::numerics {
namespace {

ScaleWindow window_of(const std::vector<std::uint8_t>& codes) {
    const bool live[8] = {};
    return choose_window(codes.data(), live, static_cast<int>(codes.size()));
}

TEST(ScaleWindow, EveryOperandIsAnE5m2Value) {
    for (unsigned nibble = 0; nibble < 16; ++nibble) {
        for (int v = 0; v < kWindowOctaves; ++v) {
            const float weight = e2m1_to_float(static_cast<std::uint8_t>(nibble));
            const float operand = weight * window_operand_scale(static_cast<std::uint8_t>(v));
            EXPECT_EQ(operand, std::ldexp(weight, v - 13));
            EXPECT_EQ(e5m2_to_float(e5m2_from_float(operand)), operand) << nibble << ' ' << v;
        }
    }
    // One octave more does not fit: 6 * 2^14 is above 57344.
    EXPECT_NE(e5m2_to_float(e5m2_from_float(std::ldexp(6.0F, 14))), std::ldexp(6.0F, 14));
}

TEST(ScaleWindow, OperandBytesAreTheDecodersTable) {
    // facts/fp4-decode.md section 3: lo = v * 0x04040400 + 0x0A080400, hi likewise.
    for (unsigned v = 0; v < 27; ++v) {
        const std::uint64_t lo = v * 0x04040400U + 0x0A080400U;
        const std::uint64_t hi = v * 0x04040404U + 0x12100E0CU;
        const std::uint64_t table = lo | hi << 32;
        for (unsigned magnitude = 0; magnitude < 8; ++magnitude) {
            const float operand = e2m1_to_float(static_cast<std::uint8_t>(magnitude)) *
                                  window_operand_scale(static_cast<std::uint8_t>(v));
            EXPECT_EQ(e5m2_from_float(operand), (table >> (8 * magnitude)) & 0xFF)
                << v << ' ' << magnitude;
        }
    }
}

TEST(ScaleWindow, FactorsAreExactFiniteAndNormal) {
    for (int base = 0; base <= kMaxWindowBase; ++base) {
        const float factor = window_factor(static_cast<std::uint8_t>(base));
        EXPECT_EQ(factor, std::ldexp(1.0, base - 127 + 13)) << base;
        EXPECT_TRUE(std::isnormal(factor)) << base;
    }
    EXPECT_EQ(window_factor(kNeutralWindowBase), 1.0F);
}

TEST(ScaleWindow, OperandTimesFactorIsTheWeight) {
    for (int base = 0; base <= kMaxWindowBase; ++base) {
        for (int v = 0; v < kWindowOctaves && base + v < 255; ++v) {
            const double product =
                static_cast<double>(window_operand_scale(static_cast<std::uint8_t>(v))) *
                static_cast<double>(window_factor(static_cast<std::uint8_t>(base)));
            ASSERT_EQ(product, std::ldexp(1.0, base + v - 127)) << base << ' ' << v;
        }
    }
}

TEST(ScaleWindow, SpansOf27CodesFitAnd28DoNot) {
    for (int low = 0; low < 255; ++low) {
        for (const int span : {1, 26, 27, 28, 40}) {
            const int high = low + span - 1;
            if (high > 254) continue;
            const auto window =
                window_of({static_cast<std::uint8_t>(high), static_cast<std::uint8_t>(low),
                           static_cast<std::uint8_t>((low + high) / 2)});
            EXPECT_EQ(window.fits, span <= 27) << low << ' ' << span;
            if (!window.fits) continue;
            EXPECT_LE(window.base, low) << span;
            EXPECT_LE(high - window.base, 26) << low;
            EXPECT_LE(window.base, 241);
            // No other window that holds the codes has a factor nearer to 1.
            for (int base = std::max(high - 26, 0); base <= std::min(low, 241); ++base) {
                EXPECT_LE(std::abs(window.base - 114), std::abs(base - 114)) << low << ' ' << span;
            }
        }
    }
}

TEST(ScaleWindow, CodesAtTheEnds) {
    EXPECT_EQ(window_of({0}).base, 0);
    EXPECT_EQ(window_of({1}).base, 1);
    EXPECT_TRUE(window_of({0, 26}).fits);
    EXPECT_FALSE(window_of({0, 27}).fits);
    EXPECT_EQ(window_of({254}).base, 228);
    EXPECT_TRUE(window_of({254}).fits);
    EXPECT_EQ(window_of({242, 254}).base, 228);
    EXPECT_TRUE(window_of({242, 254}).fits);
    EXPECT_EQ(window_of({240, 254}).base, 228);
    EXPECT_FALSE(window_of({227, 254}).fits);
    // Scales of ordinary layers: factor 1.
    EXPECT_EQ(window_of({117, 121}).base, 114);
    EXPECT_EQ(window_of({100, 121}).base, 100);
}

TEST(ScaleWindow, ZeroGroupsTakeAnyCode) {
    const std::uint8_t codes[4] = {0, 120, 254, 130};
    const bool is_zero[4] = {true, false, true, false};
    const ScaleWindow window = choose_window(codes, is_zero, 4);
    EXPECT_EQ(window.base, 114);
    EXPECT_TRUE(window.fits);
    const bool all_zero[4] = {true, true, true, true};
    const ScaleWindow neutral = choose_window(codes, all_zero, 4);
    EXPECT_TRUE(neutral.fits);
    EXPECT_EQ(window_factor(neutral.base), 1.0F);
    const bool live[4] = {};
    EXPECT_FALSE(choose_window(codes, live, 4).fits);
}

}  // namespace
}  // namespace gcmoe::numerics
