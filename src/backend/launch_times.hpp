// From what the units of a launch recorded to the launch's times, and from seconds to wait limits:
// the same for every backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gcmoe/operator.hpp"

namespace gcmoe::backend {

// Zero means for ever, so that a limit below a nanosecond counts as one.
inline std::uint64_t limit_ns(double seconds) {
    if (seconds <= 0) return 0;
    return std::max(static_cast<std::uint64_t>(seconds * 1e9), std::uint64_t{1});
}

// Microseconds from `start` to `ns`; -1 if it did not happen.
inline double since_us(std::uint64_t start, std::uint64_t ns) {
    return ns == 0 ? -1.0 : (static_cast<double>(ns) - static_cast<double>(start)) / 1000.0;
}

// The earliest nonzero value of a field over units, or 0.
template <class Unit>
std::uint64_t earliest(const std::vector<Unit>& units, std::uint64_t Unit::*field) {
    std::uint64_t best = 0;
    for (const Unit& unit : units) {
        const std::uint64_t value = unit.*field;
        if (value != 0 && (best == 0 || value < best)) best = value;
    }
    return best;
}

template <class Unit>
std::uint64_t latest(const std::vector<Unit>& units, std::uint64_t Unit::*field) {
    std::uint64_t best = 0;
    for (const Unit& unit : units) best = std::max(best, unit.*field);
    return best;
}

// Unit: begin_ns, first_work_ns, last_work_ns, end_ns of one clock; 0 = did not happen.
template <class Unit>
LaunchTimes launch_times(const std::vector<Unit>& dispatch, const std::vector<Unit>& compute,
                         const std::vector<Unit>& combine) {
    LaunchTimes times;
    const std::uint64_t start = earliest(dispatch, &Unit::begin_ns);
    times.role1_first_row_us = since_us(start, earliest(dispatch, &Unit::first_work_ns));
    times.role1_last_row_us = since_us(start, latest(dispatch, &Unit::last_work_ns));
    times.role1_end_us = since_us(start, latest(dispatch, &Unit::end_ns));
    times.role2_first_task_us = since_us(start, earliest(compute, &Unit::first_work_ns));
    times.role2_end_us = since_us(start, latest(compute, &Unit::end_ns));
    times.role3_begin_us = since_us(start, earliest(combine, &Unit::begin_ns));
    times.role3_end_us = since_us(start, latest(combine, &Unit::end_ns));
    return times;
}

}  // namespace gcmoe::backend
