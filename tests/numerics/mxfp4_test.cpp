#include "numerics/mxfp4.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "numerics/bf16.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::numerics {
namespace {

// The code nearest to value among all sixteen, the even one of two that are equally near; codes of
// magnitude 0 as +0. In double, which holds every distance of a float below 2^20 exactly.
int nearest_code(double value) {
    int best = 0;
    double best_distance = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 16; ++code) {
        if (code == 8) continue;  // negative zero
        const double distance =
            std::abs(value - static_cast<double>(e2m1_to_float(static_cast<std::uint8_t>(code))));
        const bool wins_tie = distance == best_distance && code % 2 == 0;
        if (distance < best_distance || wins_tie) {
            best = code;
            best_distance = distance;
        }
    }
    return best;
}

double scale_of(int code) { return std::ldexp(1.0, code - 127); }

// Rule by its words: floor(log2(amax)) - 2 or one more, whichever has the smaller squared error.
struct BruteForce {
    int code = 0;
    int nibbles[kMxfp4Group] = {};

    explicit BruteForce(const float* values) {
        double amax = 0.0;
        for (int i = 0; i < kMxfp4Group; ++i) {
            amax = std::max(amax, std::abs(static_cast<double>(values[i])));
        }
        const int first = amax == 0.0 ? 0 : std::max(0, std::ilogb(amax) - 2 + 127);
        code = error_of(values, first) <= error_of(values, first + 1) ? first : first + 1;
        for (int i = 0; i < kMxfp4Group; ++i) {
            nibbles[i] = nearest_code(static_cast<double>(values[i]) / scale_of(code));
        }
    }

    static double error_of(const float* values, int candidate) {
        double sum = 0.0;
        for (int i = 0; i < kMxfp4Group; ++i) {
            const double scaled = static_cast<double>(values[i]) / scale_of(candidate);
            const auto nibble = static_cast<std::uint8_t>(nearest_code(scaled));
            const double error = scaled - static_cast<double>(e2m1_to_float(nibble));
            sum += error * error;
        }
        return sum * scale_of(candidate) * scale_of(candidate);
    }
};

void expect_brute_force(const float* values, std::uint64_t which) {
    const BruteForce expected(values);
    std::uint8_t bytes[kMxfp4Group / 2];
    std::fill(std::begin(bytes), std::end(bytes), std::uint8_t{0xA5});
    std::uint8_t code = 0xA5;
    quantise_mxfp4_group(values, bytes, &code);
    ASSERT_EQ(static_cast<int>(code), expected.code) << which;
    for (int i = 0; i < kMxfp4Group; ++i) {
        const int nibble = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
        ASSERT_EQ(nibble, expected.nibbles[i]) << which << ", value " << i << " = " << values[i];
    }
}

TEST(Mxfp4, RoundsEveryBf16ToTheNearestEvenCode) {
    int num_ties = 0;
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
        if (!std::isfinite(value)) continue;
        const int expected = std::abs(value) > 16.0F ? (value < 0.0F ? 15 : 7)
                                                     : nearest_code(static_cast<double>(value));
        ASSERT_EQ(static_cast<int>(e2m1_nearest_even(value)), expected) << value;
        ASSERT_EQ(e2m1_round_magnitude(value),
                  e2m1_to_float(static_cast<std::uint8_t>(expected & 7)))
            << value;
        for (const float tie : {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F}) {
            num_ties += std::abs(value) == tie ? 1 : 0;
        }
    }
    EXPECT_EQ(num_ties, 14);  // every tie, of both signs, was among them
}

TEST(Mxfp4, TakesTheSideOfEveryTie) {
    const std::pair<float, int> ties[] = {{0.25F, 0}, {0.75F, 2}, {1.25F, 2}, {1.75F, 4},
                                          {2.5F, 4},  {3.5F, 6},  {5.0F, 6}};
    int below = 0;
    for (const auto& [tie, code] : ties) {
        EXPECT_EQ(static_cast<int>(e2m1_nearest_even(tie)), code);
        EXPECT_EQ(static_cast<int>(e2m1_nearest_even(std::nextafter(tie, 0.0F))), below);
        EXPECT_EQ(static_cast<int>(e2m1_nearest_even(std::nextafter(tie, 8.0F))), below + 1);
        EXPECT_EQ(static_cast<int>(e2m1_nearest_even(-tie)), code == 0 ? 0 : code | 8);
        for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 8.0F)}) {
            EXPECT_EQ(e2m1_round_magnitude(value), e2m1_to_float(e2m1_nearest_even(value)))
                << value;
        }
        ++below;
    }
}

// Every finite BF16 number is the largest of a group once, with the rest drawn below it.
TEST(Mxfp4, EveryLargestValueGetsTheBruteForceScale) {
    int num_raised = 0;
    for (unsigned bits = 0; bits < 0x8000; ++bits) {
        const float amax = bf16_to_float(static_cast<std::uint16_t>(bits));
        if (!std::isfinite(amax)) continue;
        float values[kMxfp4Group];
        for (int i = 0; i < kMxfp4Group; ++i) {
            const std::uint64_t word = bits * std::uint64_t{64} + static_cast<std::uint64_t>(i);
            const float share = 2.0F * hash_uniform(word) - 1.0F;
            values[i] = bf16_to_float(bf16_from_float(amax * share * 0.75F));
        }
        values[bits % kMxfp4Group] = bits % 2 == 0 ? amax : -amax;
        expect_brute_force(values, bits);
        num_raised += mxfp4_scale_code(values) != mxfp4_floor_code(amax) ? 1 : 0;
    }
    EXPECT_GT(num_raised, 1000);  // both scales are taken
    EXPECT_LT(num_raised, 31000);
}

TEST(Mxfp4, RandomGroupsOfAllKinds) {
    for (std::uint64_t group = 0; group < 20000; ++group) {
        float values[kMxfp4Group];
        const int exponent = static_cast<int>(splitmix64(group) % 200) - 100;
        for (int i = 0; i < kMxfp4Group; ++i) {
            const std::uint64_t word = hash_combine(group, static_cast<std::uint64_t>(i));
            values[i] = std::ldexp(hash_normal(word), exponent);
            if (group % 7 == 0 && i != 3) values[i] *= 0x1p-6F;  // one stands out
            if (group % 5 == 0 && word % 3 == 0) values[i] = 0.0F;
        }
        expect_brute_force(values, group);
    }
}

TEST(Mxfp4, ZerosTinyAndHuge) {
    float values[kMxfp4Group] = {};
    expect_brute_force(values, 0);
    EXPECT_EQ(static_cast<int>(mxfp4_scale_code(values)), 0);
    values[0] = std::numeric_limits<float>::denorm_min();
    expect_brute_force(values, 1);
    values[5] = -std::numeric_limits<float>::min();
    expect_brute_force(values, 2);
    values[31] = std::numeric_limits<float>::max();
    expect_brute_force(values, 3);
    EXPECT_LE(static_cast<int>(mxfp4_scale_code(values)), 253);
}

// Relative L2 error of normal weights under a rule for the scale code.
template <class Rule>
double normal_error(const Rule& rule) {
    double error = 0.0;
    double square = 0.0;
    for (std::uint64_t group = 0; group < 20000; ++group) {
        float values[kMxfp4Group];
        for (int i = 0; i < kMxfp4Group; ++i) {
            values[i] = 0.02F * hash_normal(group * kMxfp4Group + static_cast<std::uint64_t>(i));
            square += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        }
        const std::uint8_t code = rule(values);
        error += mxfp4_group_error(values, code) * scale_of(code) * scale_of(code);
    }
    return std::sqrt(error / square);
}

// The table of docs/checkpoints.md.
TEST(Mxfp4, ErrsLessThanEitherRuleAlone) {
    const auto ocp = [](const float* values) {
        return mxfp4_floor_code(group_amax(values, kMxfp4Group));
    };
    const auto no_saturation = [](const float* values) {
        return ue8m0_ceil(group_amax(values, kMxfp4Group) / kE2m1Max);
    };
    EXPECT_NEAR(normal_error(ocp), 0.1129, 5e-5);
    EXPECT_NEAR(normal_error(no_saturation), 0.1177, 5e-5);
    EXPECT_NEAR(normal_error(mxfp4_scale_code), 0.1106, 5e-5);
}

// What is already MXFP4 keeps its values (not always its scale).
TEST(Mxfp4, ExactGroupsStayExact) {
    for (std::uint64_t group = 0; group < 4000; ++group) {
        float values[kMxfp4Group];
        const int code = 1 + static_cast<int>(splitmix64(group) % 252);
        for (int i = 0; i < kMxfp4Group; ++i) {
            const std::uint64_t word = hash_combine(group, static_cast<std::uint64_t>(i));
            values[i] = static_cast<float>(
                std::ldexp(static_cast<double>(e2m1_to_float(static_cast<std::uint8_t>(word % 16))),
                           code - 127));
        }
        std::uint8_t bytes[kMxfp4Group / 2];
        std::uint8_t scale = 0;
        quantise_mxfp4_group(values, bytes, &scale);
        for (int i = 0; i < kMxfp4Group; ++i) {
            const unsigned pair = bytes[i / 2];
            const auto nibble = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 15U : pair >> 4);
            ASSERT_EQ(e2m1_to_float(nibble) * ue8m0_to_float(scale), values[i]) << group;
        }
    }
}

}  // namespace
}  // namespace gcmoe::numerics
