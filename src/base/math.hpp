// Integer helpers that several rooms need and that name nothing of MoE.
#pragma once

#include <cstddef>
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

// A count or an index that is not negative, to multiply without overflow.
GCMOE_HD constexpr std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

GCMOE_HD constexpr std::size_t area(int rows, int cols) { return size_of(rows) * size_of(cols); }

}  // namespace gcmoe
