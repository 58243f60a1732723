// Copies and comparisons of what a WeightSource hands out.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

inline std::string bytes_of(const void* data, std::size_t num_bytes) {
    return {static_cast<const char*>(data), num_bytes};
}

inline std::string nibbles_of(const Mxfp4View& view) {
    return bytes_of(view.nibbles, area(view.rows, view.cols / 2));
}

inline std::string scales_of(const Mxfp4View& view) {
    return bytes_of(view.scales, area(view.rows, view.cols / 32));
}

inline std::string codes_of(const Fp8View& view) {
    return bytes_of(view.codes, area(view.rows, view.cols));
}

inline std::string scales_of(const Fp8View& view) {
    const GridBlock block = grid_block(view.grid);
    const std::size_t num_scales =
        area(ceil_div(view.rows, block.rows), ceil_div(view.cols, block.cols));
    return bytes_of(view.scales, num_scales * (view.grid == ScaleGrid::kFp32Block128 ? 4 : 1));
}

inline std::string bias_bytes(const float* bias, int num_rows) {
    return bias == nullptr ? "none" : bytes_of(bias, static_cast<std::size_t>(num_rows) * 4);
}

inline void expect_same(const Mxfp4View& left, const Mxfp4View& right) {
    ASSERT_EQ(left.rows, right.rows);
    ASSERT_EQ(left.cols, right.cols);
    EXPECT_TRUE(nibbles_of(left) == nibbles_of(right));
    EXPECT_TRUE(scales_of(left) == scales_of(right));
}

inline void expect_same(const Fp8View& left, const Fp8View& right) {
    ASSERT_EQ(left.rows, right.rows);
    ASSERT_EQ(left.cols, right.cols);
    ASSERT_EQ(left.grid, right.grid);
    EXPECT_TRUE(codes_of(left) == codes_of(right));
    EXPECT_TRUE(scales_of(left) == scales_of(right));
}

inline void expect_same(const ExpertBytes& left, const ExpertBytes& right) {
    expect_same(left.gate, right.gate);
    expect_same(left.up, right.up);
    expect_same(left.down, right.down);
    EXPECT_EQ(bias_bytes(left.gate_bias, left.gate.rows),
              bias_bytes(right.gate_bias, right.gate.rows));
    EXPECT_EQ(bias_bytes(left.up_bias, left.up.rows), bias_bytes(right.up_bias, right.up.rows));
    EXPECT_EQ(bias_bytes(left.down_bias, left.down.rows),
              bias_bytes(right.down_bias, right.down.rows));
}

inline void expect_same(const SharedExpertBytes& left, const SharedExpertBytes& right) {
    expect_same(left.gate, right.gate);
    expect_same(left.up, right.up);
    expect_same(left.down, right.down);
}

}  // namespace gcmoe::checkpoint
