#include "layout/sm100_tile.hpp"
#include "base/math.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "layout/sm100_matrix.hpp"
#include "numerics/hash.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::layout {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::size_t num_bytes, std::uint64_t seed, int limit = 256) {
    Bytes out(num_bytes);
    for (std::size_t idx = 0; idx < num_bytes; ++idx) {
        out[idx] = static_cast<std::uint8_t>(numerics::hash_combine(seed, idx) %
                                             static_cast<std::uint64_t>(limit));
    }
    return out;
}

struct Fp4Matrix {
    Bytes nibbles;
    Bytes scales;
    Mxfp4View view;

    Fp4Matrix(int rows, int cols, std::uint64_t seed)
        : nibbles(random_bytes(area(rows, cols / 2), seed)),
          scales(random_bytes(area(rows, cols / 32), seed + 1, 255)),
          view{nibbles.data(), scales.data(), rows, cols} {}
};

void expect_same(const Fp4Matrix& matrix, const Sm100Unpacked& unpacked) {
    EXPECT_EQ(unpacked.rows, matrix.view.rows);
    EXPECT_EQ(unpacked.cols, matrix.view.cols);
    EXPECT_TRUE(unpacked.weights == matrix.nibbles);
    EXPECT_TRUE(unpacked.scales == matrix.scales);
}

constexpr std::pair<int, int> kSizes[] = {{128, 128}, {128, 384},  {384, 256},
                                          {256, 640}, {2304, 256}, {2944, 128}};

TEST(Sm100Tile, ScaleOrderIsA32By4Chunk) {
    std::vector<bool> taken(kSm100ScaleBytes, false);
    for (int row = 0; row < kSm100TileRows; ++row) {
        for (int group = 0; group < kGroupsPerChunk; ++group) {
            const int offset = sm100_scale_offset(row, group);
            ASSERT_FALSE(taken[static_cast<std::size_t>(offset)]);
            taken[static_cast<std::size_t>(offset)] = true;
            const Sm100ScalePlace place = sm100_scale_place(offset);
            EXPECT_EQ(place.row, row);
            EXPECT_EQ(place.group, group);
        }
    }
    // By hand: rows 0, 1, 32 and 127.
    EXPECT_EQ(sm100_scale_offset(0, 3), 3);
    EXPECT_EQ(sm100_scale_offset(1, 0), 16);
    EXPECT_EQ(sm100_scale_offset(32, 0), 4);
    EXPECT_EQ(sm100_scale_offset(127, 3), 511);
    EXPECT_EQ(sm100_scale_offset(5, 2), 82);  // the example in the documentation of nvmath-python
}

TEST(Sm100Tile, GateAndUpOfAColumnShareALane) {
    for (int packed_row = 0; packed_row < 2 * 2304; ++packed_row) {
        const FirstGemmRow row = sm100_first_gemm_row(packed_row);
        ASSERT_EQ(sm100_first_gemm_packed_row(row), packed_row);
        const int partner = sm100_first_gemm_packed_row({row.column, !row.is_up});
        EXPECT_EQ(partner % 128, packed_row % 128);
        EXPECT_EQ(partner / 256, packed_row / 256);  // one task of 128 columns
        EXPECT_EQ(packed_row / 256, row.column / 128);
    }
}

TEST(Sm100Tile, ATaskReadsConsecutiveTiles) {
    for (const int num_chunks : {1, 3, 23}) {
        int expected = 0;
        for (int task = 0; task < 4; ++task) {
            for (int chunk = 0; chunk < num_chunks; ++chunk) {
                for (int part = 0; part < 2; ++part) {
                    EXPECT_EQ(sm100_tile_idx(true, 2 * task + part, chunk, num_chunks), expected++);
                }
            }
        }
        expected = 0;
        for (int row_tile = 0; row_tile < 4; ++row_tile) {
            for (int chunk = 0; chunk < num_chunks; ++chunk) {
                EXPECT_EQ(sm100_tile_idx(false, row_tile, chunk, num_chunks), expected++);
            }
        }
    }
}

TEST(Sm100Matrix, Fp4ComesBackByteByByte) {
    for (const auto& [rows, cols] : kSizes) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols);
        const Fp4Matrix gate(rows, cols, 1);
        const Fp4Matrix up(rows, cols, 2);
        const Fp4Matrix down(cols, rows, 3);
        PackReport report;
        Sm100Matrix first;
        Sm100Matrix second;
        ASSERT_TRUE(pack_sm100({"e", true, gate.view, up.view, {}}, &first, &report).ok());
        ASSERT_TRUE(pack_sm100({"e", false, {}, {}, down.view}, &second, &report).ok());
        EXPECT_EQ(first.tiles.size(), area(2 * rows, cols / 2));
        EXPECT_EQ(first.scales.size(), area(2 * rows, cols / 32));
        EXPECT_EQ(report.packed_bytes, static_cast<std::int64_t>(area(3 * rows, cols) * 17 / 32));
        expect_same(gate, unpack_sm100(first, false));
        expect_same(up, unpack_sm100(first, true));
        expect_same(down, unpack_sm100(second, false));
    }
}

// A place by the words of the layout, not by its functions: up of column 130, k = 300.
TEST(Sm100Matrix, PlacesAreWhatTheHeadSays) {
    const Fp4Matrix gate(256, 384, 1);
    const Fp4Matrix up(256, 384, 2);
    PackReport report;
    Sm100Matrix first;
    ASSERT_TRUE(pack_sm100({"e", true, gate.view, up.view, {}}, &first, &report).ok());
    const std::size_t tile = (1 * 3 + 2) * 2 + 1;  // task 1, chunk 2 of 3, up
    const std::size_t row = 130 - 128;
    EXPECT_EQ(first.tiles[(tile * 128 + row) * 64 + (300 - 256) / 2], up.nibbles[130 * 192 + 150]);
    EXPECT_EQ(first.scales[tile * 512 + 2 * 16 + 0 * 4 + 1], up.scales[130 * 12 + 9]);
}

TEST(Sm100Matrix, NanScalesAreRefused) {
    Fp4Matrix gate(128, 256, 1);
    const Fp4Matrix up(128, 256, 2);
    gate.scales[77 * 8 + 5] = 255;
    PackReport report;
    Sm100Matrix first;
    const Status status = pack_sm100({"expert 3", true, gate.view, up.view, {}}, &first, &report);
    EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(Code::kBadCheckpoint));
    EXPECT_NE(status.message().find("expert 3 gate row 77: the UE8M0 scale of K32 group 5"),
              std::string::npos)
        << status.message();
}

struct GridCase {
    ScaleGrid grid;
    int block_rows;
    int block_cols;
};
constexpr GridCase kGrids[] = {{ScaleGrid::kFp32Block128, 128, 128},
                               {ScaleGrid::kUe8m0Block128, 128, 128},
                               {ScaleGrid::kUe8m0Block32, 32, 32},
                               {ScaleGrid::kUe8m0Row32, 1, 32}};

struct Fp8Matrix {
    GridCase grid;
    Bytes codes;
    Bytes ue8m0;  // the scales, as codes
    std::vector<float> fp32;
    Fp8View view;

    Fp8Matrix(int rows, int cols, GridCase grid_case, std::uint64_t seed)
        : grid(grid_case), codes(random_bytes(area(rows, cols), seed, 0x7F)) {
        for (std::size_t idx = 0; idx < codes.size(); idx += 3) codes[idx] |= 0x80;
        for (std::uint8_t& code : codes) {
            if ((code & 0x7F) == 0x7F) code = 0;
        }
        ue8m0 = random_bytes(area(rows / grid.block_rows, cols / grid.block_cols), seed + 1, 200);
        for (std::uint8_t& code : ue8m0) code = static_cast<std::uint8_t>(code + 20);
        for (const std::uint8_t code : ue8m0) fp32.push_back(numerics::ue8m0_to_float(code));
        const bool is_fp32 = grid.grid == ScaleGrid::kFp32Block128;
        view = {codes.data(), is_fp32 ? static_cast<const void*>(fp32.data()) : ue8m0.data(),
                grid.grid, rows, cols};
    }

    void expect_is(const Sm100Unpacked& unpacked) const {
        EXPECT_TRUE(unpacked.weights == codes);
        const int groups = view.cols / 32;
        for (int row = 0; row < view.rows; ++row) {
            for (int group = 0; group < groups; ++group) {
                const int grid_row = row / grid.block_rows;
                const int grid_col = group * 32 / grid.block_cols;
                const int grid_cols = view.cols / grid.block_cols;
                ASSERT_EQ(unpacked.scales[area(row, groups) + static_cast<std::size_t>(group)],
                          ue8m0[area(grid_row, grid_cols) + static_cast<std::size_t>(grid_col)]);
            }
        }
    }
};

TEST(Sm100Matrix, Fp8ComesBackFromEveryGrid) {
    for (const GridCase& grid : kGrids) {
        for (const auto& [rows, cols] : kSizes) {
            SCOPED_TRACE(testing::Message()
                         << static_cast<int>(grid.grid) << ": " << rows << " x " << cols);
            const Fp8Matrix gate(rows, cols, grid, 1);
            const Fp8Matrix up(rows, cols, grid, 2);
            const Fp8Matrix down(cols, rows, grid, 3);
            PackReport report;
            Sm100Matrix first;
            Sm100Matrix second;
            ASSERT_TRUE(
                pack_sm100({"s", true, gate.view, up.view, {}}, false, &first, &report).ok());
            ASSERT_TRUE(pack_sm100({"s", false, {}, {}, down.view}, false, &second, &report).ok());
            EXPECT_EQ(first.tiles.size(), area(2 * rows, cols));
            gate.expect_is(unpack_sm100(first, false));
            up.expect_is(unpack_sm100(first, true));
            down.expect_is(unpack_sm100(second, false));
            EXPECT_EQ(report.num_changed_values, 0);
        }
    }
}

TEST(Sm100Matrix, OtherFp32ScalesNeedLeave) {
    Fp8Matrix down(256, 128, kGrids[0], 5);
    down.fp32[1] = 0.75F;
    const SharedSource source{"shared expert", false, {}, {}, down.view};
    PackReport report;
    Sm100Matrix packed;
    const Status refused = pack_sm100(source, false, &packed, &report);
    EXPECT_EQ(static_cast<int>(refused.code()), static_cast<int>(Code::kInexact));
    EXPECT_NE(refused.message().find("down row 128, columns 0..31: scale 0.75 is no power of two"),
              std::string::npos)
        << refused.message();
    ASSERT_TRUE(pack_sm100(source, true, &packed, &report).ok());
    EXPECT_GT(report.num_changed_values, 0);
    EXPECT_GT(report.worst_change, 0.0);
    EXPECT_LE(report.worst_change, 1.0 / 16);  // half a step of E4M3 at most
    const Sm100Unpacked unpacked = unpack_sm100(packed, false);
    for (std::size_t idx = 0; idx < down.codes.size(); ++idx) {
        const bool exact = idx < 128 * 128;
        const float value = numerics::e4m3_to_float(down.codes[idx]);
        const std::uint8_t want =
            exact ? down.codes[idx] : numerics::e4m3_from_float(value * 0.75F);
        ASSERT_EQ(unpacked.weights[idx], want) << idx;
        ASSERT_EQ(unpacked.scales[idx / 32], exact ? down.ue8m0[0] : 127) << idx;  // 0.75 -> 1
    }
}

}  // namespace
}  // namespace gcmoe::layout
