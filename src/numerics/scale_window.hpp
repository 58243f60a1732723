// How the scales of FP4 weights are folded into E5M2 operands.
//
// A weight is e2m1 * 2^(code - 127). With a window that starts at base and v = code - base in 0..26
// it is (e2m1 * 2^v * 2^-13) * 2^(base - 127 + 13): the first factor is exactly an E5M2 value, the
// second one FP32 factor outside the sum. 0.5 * 2^-13 is the smallest normal E5M2 number and
// 6 * 2^26 * 2^-13 = 49152 fits below 57344, hence 27 octaves.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

inline constexpr int kWindowOctaves = 27;            // v = 0..26
inline constexpr int kWindowExponent = 13;           // an operand is e2m1 * 2^(v - 13)
inline constexpr std::uint8_t kMaxWindowBase = 241;  // 2^(241 - 127 + 13) = 2^127, still finite
inline constexpr std::uint8_t kNeutralWindowBase = 127 - kWindowExponent;  // factor 1

struct ScaleWindow {
    std::uint8_t base;  // the code that v = 0 stands for, 0..kMaxWindowBase
    bool fits;          // every live code is in base..base + 26
};

// The smallest and the largest of some scale codes; empty: largest < 0.
struct CodeRange {
    int smallest = 256;
    int largest = -1;

    GCMOE_HD constexpr void add(int code) {
        smallest = code < smallest ? code : smallest;
        largest = code > largest ? code : largest;
    }
};

// The window of the live codes of a row or chunk. Of all that hold every live code it is the one
// whose factor is nearest to 1, so that factor times activation scale stays finite and normal
// wherever the weights allow it: ordinary layers get factor 1. If none holds them: the one that
// starts at the smallest live code. The caller has refused code 255.
GCMOE_HD constexpr ScaleWindow choose_window(const CodeRange& live) {
    if (live.largest < 0) return ScaleWindow{kNeutralWindowBase, true};
    const int highest = live.smallest < kMaxWindowBase ? live.smallest : kMaxWindowBase;
    const int lowest = live.largest - (kWindowOctaves - 1);
    if (lowest > highest) return ScaleWindow{static_cast<std::uint8_t>(highest), false};
    int base = kNeutralWindowBase;
    if (base > highest) base = highest;
    if (base < lowest) base = lowest;
    return ScaleWindow{static_cast<std::uint8_t>(base), true};
}

// The same of n codes. Groups whose weights are all zero are not live: they take any code, and
// v = 0.
GCMOE_HD constexpr ScaleWindow choose_window(const std::uint8_t* codes, const bool* group_is_zero,
                                             int n) {
    CodeRange live;
    for (int i = 0; i < n; ++i) {
        if (!group_is_zero[i]) live.add(codes[i]);
    }
    return choose_window(live);
}

// 2^(base - 127 + 13): finite and normal for base in 0..kMaxWindowBase.
GCMOE_HD constexpr float window_factor(std::uint8_t base) {
    return power_of_two(static_cast<int>(base) - 127 + kWindowExponent);
}

// 2^(v - 13): what an E2M1 value is multiplied by to become its E5M2 operand, v in 0..26.
GCMOE_HD constexpr float window_operand_scale(std::uint8_t v) {
    return power_of_two(static_cast<int>(v) - kWindowExponent);
}

}  // namespace gcmoe::numerics
