// Integer helpers that several rooms need and that name nothing of MoE.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe {

template <class T>
GCMOE_HD constexpr T ceil_div(T value, T divisor) {
    return (value + divisor - 1) / divisor;
}

template <class T>
GCMOE_HD constexpr T round_up(T value, T multiple) {
    return ceil_div(value, multiple) * multiple;
}

GCMOE_HD constexpr bool is_power_of_two(std::uint64_t value) {
    return value != 0 && (value & (value - 1)) == 0;
}

}  // namespace gcmoe
