// The arithmetic of a bench: bytes, floors, rates, medians.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gcmoe/shape.hpp"

namespace gcmoe::cli {

// Bytes that an H200 hands out in a microsecond: what floors are counted with.
inline constexpr double kFloorBytesPerUs = 4.3e6;
// MXFP4: a nibble, and a scale of 32 weights.
inline constexpr double kNibbleBytes = 0.5;
inline constexpr double kScaleBytes = 1.0 / 32;

// Weights of a routed expert: gate, up, down.
[[nodiscard]] inline double expert_weights(const Shape& shape) {
    return 3.0 * shape.hidden * shape.inter;
}
// MXFP4 with scales.
[[nodiscard]] inline double expert_bytes(const Shape& shape) {
    return expert_weights(shape) * (kNibbleBytes + kScaleBytes);
}
// FP8; its scales are below a thousandth and left out. 0 without a shared expert.
[[nodiscard]] inline double shared_bytes(const Shape& shape) {
    return 3.0 * shape.hidden * shape.shared_inter;
}
[[nodiscard]] inline double floor_us(double bytes) { return bytes / kFloorBytesPerUs; }

// 1e12 operations a second: two for every weight and slot.
[[nodiscard]] inline double tflops(const Shape& shape, std::int64_t num_slots, double us) {
    return static_cast<double>(num_slots) * 2.0 * expert_weights(shape) / us / 1e6;
}
// 1e9 bytes a second.
[[nodiscard]] inline double gb_per_s(double bytes, double us) { return bytes / us / 1e3; }

// Index of the median; of an even number of values the upper of the two in the middle.
// Callers: at least one value.
[[nodiscard]] inline std::size_t median_idx(const std::vector<double>& values) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    return order[values.size() / 2];
}
[[nodiscard]] inline double median(const std::vector<double>& values) {
    return values[median_idx(values)];
}
[[nodiscard]] inline double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace gcmoe::cli
