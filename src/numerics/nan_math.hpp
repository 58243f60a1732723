// min, max, clamp and abs that hand a NaN on. The C functions do not: fminf(NaN, 10) is 10, and a
// broken token would look healthy.
#pragma once

#include "base/host_device.hpp"
#include "numerics/bits.hpp"

namespace gcmoe::numerics {

// The smaller value; NaN if either is NaN.
template <class Real>
GCMOE_HD constexpr Real min_nan(Real a, Real b) {
    if (a != a) return a;
    if (b != b) return b;
    return b < a ? b : a;
}

// The larger value; NaN if either is NaN.
template <class Real>
GCMOE_HD constexpr Real max_nan(Real a, Real b) {
    if (a != a) return a;
    if (b != b) return b;
    return a < b ? b : a;
}

// value limited to [low, high]; NaN stays NaN.
template <class Real>
GCMOE_HD constexpr Real clamp_nan(Real value, Real low, Real high) {
    return max_nan(min_nan(value, high), low);
}

// The magnitude; clears the sign bit, of zeros and NaN too.
GCMOE_HD constexpr float abs(float value) {
    return bits_to_float(float_to_bits(value) & kFloatMagnitudeMask);
}

GCMOE_HD constexpr double abs(double value) {
    return __builtin_bit_cast(
        double, __builtin_bit_cast(unsigned long long, value) & 0x7FFFFFFFFFFFFFFFULL);
}

}  // namespace gcmoe::numerics
