// Pseudo-random numbers as a function of an index: the same bits on host and device, in any order.
// Integer arithmetic and one float multiply; no libm.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::numerics {

// One step of SplitMix64 from state word. Source: Steele, Lea, Flood, OOPSLA 2014.
GCMOE_HD constexpr std::uint64_t splitmix64(std::uint64_t word) {
    std::uint64_t z = word + 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

// Folds value into seed. The order of the two counts.
GCMOE_HD constexpr std::uint64_t hash_combine(std::uint64_t seed, std::uint64_t value) {
    return splitmix64(seed ^ splitmix64(value));
}

// Nearly normal, mean 0, standard deviation 1, in +-4.88: the sum of eight random bytes (mean 1020,
// variance 43690) less its mean, times 1 / sqrt(43690).
GCMOE_HD constexpr float hash_normal(std::uint64_t word) {
    const std::uint64_t bytes = splitmix64(word);
    const std::uint64_t pairs =
        (bytes & 0x00FF00FF00FF00FFULL) + ((bytes >> 8) & 0x00FF00FF00FF00FFULL);
    const int sum = static_cast<int>((pairs * 0x0001000100010001ULL) >> 48);
    return static_cast<float>(sum - 1020) * 0x1.39897ep-8F;
}

// Uniform in [0, 1), a multiple of 2^-24.
GCMOE_HD constexpr float hash_uniform(std::uint64_t word) {
    return static_cast<float>(splitmix64(word) >> 40) * 0x1p-24F;
}

}  // namespace gcmoe::numerics
