// The hash functions: published and precomputed values, moments, independence.
#include "numerics/hash.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

#include "numerics/bits.hpp"

namespace gcmoe::numerics {
namespace {

TEST(Hash, SplitmixGivesThePublishedSequence) {
    EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFULL);
    EXPECT_EQ(splitmix64(1234567), 6457827717110365317ULL);
    EXPECT_EQ(splitmix64(1234567 + 0x9E3779B97F4A7C15ULL), 3203168211198807973ULL);
}

// Computed once with Python integers and one rounding to float. Stored inputs depend on them.
TEST(Hash, GoldenValues) {
    EXPECT_EQ(hash_combine(1, 2), 0xE06DD043328BD285ULL);
    EXPECT_EQ(hash_combine(2, 1), 0xBCD9DBB49673066BULL);
    EXPECT_EQ(hash_combine(0, 0), 0xA706DD2F4D197E6FULL);
    EXPECT_EQ(float_to_bits(hash_normal(0)), 0xBCC3F5EFU);
    EXPECT_EQ(float_to_bits(hash_normal(1)), 0xBF43F5EFU);
    EXPECT_EQ(float_to_bits(hash_normal(12345)), 0xBF700D44U);
    EXPECT_EQ(float_to_bits(hash_normal(~0ULL)), 0xBF2A3DA7U);
    EXPECT_EQ(hash_uniform(0), static_cast<float>(0xE220A8) / 16777216.0F);
    EXPECT_EQ(hash_uniform(~0ULL), static_cast<float>(0xE4D971) / 16777216.0F);
}

TEST(Hash, NormalIsTheByteSum) {
    for (std::uint64_t word = 0; word < 5000; ++word) {
        const std::uint64_t hashed = splitmix64(word * 77);
        int sum = 0;
        for (int byte = 0; byte < 8; ++byte) sum += static_cast<int>(hashed >> (8 * byte) & 0xFF);
        ASSERT_NEAR(hash_normal(word * 77), (sum - 1020) / std::sqrt(43690.0), 1e-6);
    }
}

TEST(Hash, NormalHasMeanZeroAndUnitVariance) {
    const int n = 1000000;
    double sums[4] = {};
    double neighbours = 0;
    double last = 0;
    for (int i = 0; i < n; ++i) {
        const double x = static_cast<double>(hash_normal(static_cast<std::uint64_t>(i)));
        double power = 1;
        for (double& sum : sums) sum += power *= x;
        neighbours += x * last;
        last = x;
    }
    EXPECT_NEAR(sums[0] / n, 0.0, 0.005);
    EXPECT_NEAR(sums[1] / n, 1.0, 0.007);
    EXPECT_NEAR(sums[2] / n, 0.0, 0.02);
    EXPECT_NEAR(sums[3] / n, 2.85, 0.04);  // 3 - 1.2 / 8 for eight uniform bytes
    EXPECT_NEAR(neighbours / n, 0.0, 0.005);
}

TEST(Hash, UniformFillsItsRange) {
    const int n = 200000;
    double sum = 0;
    int bins[16] = {};
    for (int i = 0; i < n; ++i) {
        const float x = hash_uniform(static_cast<std::uint64_t>(i));
        ASSERT_GE(x, 0.0F);
        ASSERT_LT(x, 1.0F);
        ASSERT_EQ(x * 16777216.0F, std::floor(x * 16777216.0F));
        sum += static_cast<double>(x);
        ++bins[static_cast<int>(x * 16)];
    }
    EXPECT_NEAR(sum / n, 0.5, 0.003);
    for (const int count : bins) EXPECT_NEAR(count, n / 16, 5 * std::sqrt(n / 16));
}

TEST(Hash, CombineSeparatesSmallIndices) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t a = 0; a < 100; ++a) {
        for (std::uint64_t b = 0; b < 100; ++b) seen.insert(hash_combine(a, b));
    }
    EXPECT_EQ(seen.size(), 10000U);
}

}  // namespace
}  // namespace gcmoe::numerics
