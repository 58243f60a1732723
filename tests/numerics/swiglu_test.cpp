// SwiGLU against an independent formula in FP64, and the NaN rules.
#include "numerics/swiglu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "numerics/nan_math.hpp"

namespace gcmoe::numerics {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Activation setting(float clamp, float alpha, float beta) {
    Activation activation;
    activation.clamp = clamp;
    activation.alpha = alpha;
    activation.beta = beta;
    return activation;
}

const Activation kSettings[] = {setting(kInfinity, 1.0F, 0.0F), setting(10.0F, 1.0F, 0.0F),
                                setting(7.0F, 1.702F, 1.0F), setting(0.5F, 0.25F, -2.0F)};

// Another way to the same number: sigmoid through tanh, clamps through ordered comparisons.
long double by_tanh(double gate, double up, const Activation& activation) {
    const long double limit = static_cast<long double>(activation.clamp);
    long double g = gate;
    long double u = up;
    if (g > limit) g = limit;
    if (u > limit) u = limit;
    if (u < -limit) u = -limit;
    const long double x = static_cast<long double>(activation.alpha) * g;
    // 0.5 (1 + tanh(x / 2)) loses digits for x << 0: there e^x / (1 + e^x).
    const long double sigmoid =
        x > -2 ? 0.5L * (1 + std::tanh(x / 2)) : std::exp(x) / (1 + std::exp(x));
    return g * sigmoid * (u + static_cast<long double>(activation.beta));
}

TEST(Swiglu, MatchesTheFormulaInFp64) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (const Activation& activation : kSettings) {
        for (int i = 0; i < 20000; ++i) {
            const double gate = normal(random) * (i % 3 == 0 ? 20 : 3);
            const double up = normal(random) * (i % 5 == 0 ? 20 : 2);
            const double want = static_cast<double>(by_tanh(gate, up, activation));
            ASSERT_NEAR(swiglu_fp64(gate, up, activation), want, std::abs(want) * 2e-14)
                << gate << ' ' << up;
        }
    }
}

TEST(Swiglu, Fp32IsWithinAFewRoundings) {
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    for (const Activation& activation : kSettings) {
        for (int i = 0; i < 20000; ++i) {
            const float gate = normal(random) * (i % 3 == 0 ? 20.0F : 3.0F);
            const float up = normal(random) * (i % 5 == 0 ? 20.0F : 2.0F);
            const double want = swiglu_fp64(gate, up, activation);
            // Five roundings, and one of the exponent that exp magnifies by its size. A sigmoid
            // below 2^-128 is 0 in FP32.
            const double ulps = 5 + std::abs(static_cast<double>(activation.alpha * gate));
            ASSERT_NEAR(swiglu(gate, up, activation), want,
                        std::abs(want) * ulps * std::ldexp(1.0, -24) + 1e-35)
                << gate << ' ' << up;
        }
    }
}

TEST(Swiglu, ClampsTheGateFromAboveOnly) {
    const Activation activation = setting(10.0F, 1.0F, 0.0F);
    EXPECT_EQ(swiglu(50.0F, 1.0F, activation), swiglu(10.0F, 1.0F, activation));
    EXPECT_NE(swiglu(-15.0F, 1.0F, activation), swiglu(-10.0F, 1.0F, activation));
    EXPECT_EQ(swiglu(2.0F, 50.0F, activation), swiglu(2.0F, 10.0F, activation));
    EXPECT_EQ(swiglu(2.0F, -50.0F, activation), swiglu(2.0F, -10.0F, activation));
    EXPECT_EQ(swiglu(kInfinity, 1.0F, activation), swiglu(10.0F, 1.0F, activation));
}

TEST(Swiglu, HugeNegativeGateGivesZero) {
    for (const Activation& activation : kSettings) {
        for (const float gate : {-1e3F, -1e20F, -std::numeric_limits<float>::max()}) {
            const float got = swiglu(gate, 3.0F, activation);
            EXPECT_FALSE(std::isnan(got)) << gate;
            EXPECT_LE(std::abs(got), 1e-30F) << gate;
        }
        EXPECT_EQ(swiglu_fp64(-1e300, 3.0, activation), 0.0);
        EXPECT_TRUE(std::isnan(swiglu(-kInfinity, 3.0F, activation)));
    }
}

TEST(Swiglu, NanPropagates) {
    for (const Activation& activation : kSettings) {
        EXPECT_TRUE(std::isnan(swiglu(kNan, 1.0F, activation)));
        EXPECT_TRUE(std::isnan(swiglu(1.0F, kNan, activation)));
        EXPECT_TRUE(std::isnan(swiglu(-kNan, -kNan, activation)));
        EXPECT_TRUE(std::isnan(swiglu_fp64(std::nan(""), 1.0, activation)));
        EXPECT_TRUE(std::isnan(swiglu_fp64(1.0, std::nan(""), activation)));
    }
}

TEST(NanMath, NanWinsOnEitherSide) {
    EXPECT_TRUE(std::isnan(min_nan(kNan, 10.0F)));
    EXPECT_TRUE(std::isnan(min_nan(10.0F, kNan)));
    EXPECT_TRUE(std::isnan(max_nan(kNan, 10.0F)));
    EXPECT_TRUE(std::isnan(max_nan(10.0F, kNan)));
    EXPECT_TRUE(std::isnan(clamp_nan(kNan, -1.0F, 1.0F)));
    EXPECT_TRUE(std::isnan(abs(kNan)));
    EXPECT_EQ(min_nan(1.0F, 2.0F), 1.0F);
    EXPECT_EQ(min_nan(2.0, 1.0), 1.0);
    EXPECT_EQ(max_nan(1.0F, 2.0F), 2.0F);
    EXPECT_EQ(max_nan(2.0, 1.0), 2.0);
    EXPECT_EQ(clamp_nan(-3.0F, -1.0F, 2.0F), -1.0F);
    EXPECT_EQ(clamp_nan(3.0F, -1.0F, 2.0F), 2.0F);
    EXPECT_EQ(clamp_nan(0.5F, -1.0F, 2.0F), 0.5F);
    EXPECT_EQ(abs(-2.5F), 2.5F);
    EXPECT_EQ(abs(-2.5), 2.5);
    EXPECT_FALSE(std::signbit(abs(-0.0F)));
}

}  // namespace
}  // namespace gcmoe::numerics
