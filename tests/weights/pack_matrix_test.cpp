// Packing one matrix: exactness in every form, what is refused, and what rounding counts.
#include "layout/pack_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "matrix_maker.hpp"

namespace gcmoe::layout {
namespace {

using Form = PackedMatrix::DecodeForm;
using gcmoe::testing::Fp8Bytes;
using gcmoe::testing::make_fp8;
using gcmoe::testing::make_mxfp4;
using gcmoe::testing::Mxfp4Bytes;

constexpr KOrder kOrders[] = {KOrder::kNatural, KOrder::kQuadBlock};

RoutedSource down_source(const Mxfp4Bytes& down) {
    return RoutedSource{"expert 5", false, {}, {}, down.view()};
}

RoutedSource first_source(const Mxfp4Bytes& gate, const Mxfp4Bytes& up) {
    return RoutedSource{"expert 5", true, gate.view(), up.view(), {}};
}

// Everything a backend may read, against the checkpoint's own numbers.
void expect_row_equals(const PackedMatrix& packed, int packed_row, const Mxfp4Bytes& source,
                       int row) {
    for (int chunk = 0; chunk < packed.chunks; ++chunk) {
        float operands[128];
        decode_fp4_tile_row(packed.tile(packed_row / 64, chunk), packed_row % 64, packed.order,
                            operands);
        const double factor = static_cast<double>(packed.factor(packed_row, chunk));
        for (int k = 0; k < 128; ++k) {
            const double want = source.value(row, chunk * 128 + k);
            ASSERT_EQ(static_cast<double>(operands[k]) * factor, want)
                << "packed row " << packed_row << " k " << chunk * 128 + k;
            ASSERT_EQ(packed_value(packed, packed_row, chunk * 128 + k), want);
        }
    }
}

void expect_exact_down(const Mxfp4Bytes& down, Form form) {
    for (const KOrder order : kOrders) {
        PackedMatrix packed;
        PackReport report;
        const Status status = pack_matrix(down_source(down), order, false, &packed, &report);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(packed.form, form);
        EXPECT_EQ(report.num_row_form, form == Form::kRowFactor);
        EXPECT_EQ(report.num_chunk_form, form == Form::kChunkFactor);
        EXPECT_EQ(report.num_changed_values, 0);
        for (const float factor : packed.factors) ASSERT_TRUE(std::isnormal(factor));
        for (int row = 0; row < down.rows; ++row) expect_row_equals(packed, row, down, row);
    }
}

TEST(PackMatrix, SpansPerRowChooseTheForm) {
    // Every row holds the two ends of the span, in different chunks.
    for (const int span : {26, 27, 28, 40}) {
        Mxfp4Bytes down = make_mxfp4(64, 512, 110, 110, 1);
        for (int row = 0; row < 64; ++row) {
            for (int group = 4; group < 12; ++group) {
                down.scale(row, group) = static_cast<std::uint8_t>(110 + span - 1);
            }
        }
        expect_exact_down(down, span <= 27 ? Form::kRowFactor : Form::kChunkFactor);
    }
}

TEST(PackMatrix, OneWideRowMakesTheMatrixChunkForm) {
    Mxfp4Bytes down = make_mxfp4(128, 256, 110, 120, 2);
    down.scale(77, 4) = 150;
    for (int group = 5; group < 8; ++group) down.scale(77, group) = 140;
    expect_exact_down(down, Form::kChunkFactor);
}

TEST(PackMatrix, RandomScalesInsideTheWindow) {
    expect_exact_down(make_mxfp4(192, 384, 0, 26, 3), Form::kRowFactor);
    expect_exact_down(make_mxfp4(64, 128, 100, 126, 4), Form::kRowFactor);
    expect_exact_down(make_mxfp4(64, 256, 228, 254, 5), Form::kRowFactor);
}

TEST(PackMatrix, SpansWithinOneChunk) {
    for (const int span : {27, 28}) {
        Mxfp4Bytes down = make_mxfp4(64, 512, 100, 100, 6);
        for (int group = 0; group < 4; ++group) down.scale(9, group) = 160;  // no row factor
        down.scale(9, 14) = static_cast<std::uint8_t>(100 + span - 1);
        if (span == 27) {
            expect_exact_down(down, Form::kChunkFactor);
            continue;
        }
        PackedMatrix packed;
        PackReport report;
        const Status status =
            pack_matrix(down_source(down), KOrder::kNatural, false, &packed, &report);
        EXPECT_EQ(status.code(), Code::kInexact);
        for (const char* word : {"expert 5", "down", "row 9", "group 12", "group 14", "code 100",
                                 "127", "28 octaves"}) {
            EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
        }
    }
}

TEST(PackMatrix, CodesAtTheEndsAsBase) {
    for (const int code : {0, 1, 2, 240, 241, 242, 253, 254}) {
        expect_exact_down(make_mxfp4(64, 256, code, code, 7), Form::kRowFactor);
    }
    // 0 and 254 in one row: two chunks, two factors.
    Mxfp4Bytes down = make_mxfp4(64, 256, 0, 0, 8);
    for (int group = 4; group < 8; ++group) down.scale(3, group) = 254;
    expect_exact_down(down, Form::kChunkFactor);
}

TEST(PackMatrix, ZeroGroupsTakeAnyCode) {
    Mxfp4Bytes down = make_mxfp4(64, 256, 100, 120, 9);
    for (int row = 0; row < 64; ++row) {
        down.fill_group(row, 1, 0x00);
        down.scale(row, 1) = 254;
        down.fill_group(row, 6, 0x88);  // negative zeros
        down.scale(row, 6) = 0;
    }
    for (int group = 0; group < 8; ++group) down.fill_group(11, group, 0x80);  // a row of zeros
    expect_exact_down(down, Form::kRowFactor);
    PackedMatrix packed;
    PackReport report;
    ASSERT_TRUE(pack_matrix(down_source(down), KOrder::kNatural, false, &packed, &report).ok());
    EXPECT_EQ(fp4_tile_scale(packed.tile(0, 0), 20, 1), 0);
    EXPECT_EQ(fp4_tile_scale(packed.tile(0, 1), 20, 2), 0);
    EXPECT_EQ(packed.factor(11, 0), 1.0F);
}

TEST(PackMatrix, Code255IsRefusedEvenOnZeros) {
    for (const bool zero : {false, true}) {
        Mxfp4Bytes gate = make_mxfp4(128, 512, 100, 110, 10);
        Mxfp4Bytes up = make_mxfp4(128, 512, 100, 110, 11);
        up.scale(37, 13) = 255;
        if (zero) up.fill_group(37, 13, 0);
        PackedMatrix packed;
        PackReport report;
        const Status status =
            pack_matrix(first_source(gate, up), KOrder::kQuadBlock, true, &packed, &report);
        EXPECT_EQ(status.code(), Code::kBadCheckpoint);
        for (const char* word : {"expert 5", "up", "row 37", "group 13", "255", "416..447"}) {
            EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
        }
    }
}

TEST(PackMatrix, GateAndUpRowsInterleave) {
    for (const int inter : {768, 2304}) {
        const Mxfp4Bytes gate = make_mxfp4(inter, 128, 100, 120, 12);
        const Mxfp4Bytes up = make_mxfp4(inter, 128, 95, 121, 13);
        for (const KOrder order : kOrders) {
            PackedMatrix packed;
            PackReport report;
            ASSERT_TRUE(pack_matrix(first_source(gate, up), order, false, &packed, &report).ok());
            ASSERT_EQ(packed.rows, 2 * inter);
            for (int slab = 0; slab < inter / 8; ++slab) {
                for (int g = 0; g < 8; ++g) {
                    expect_row_equals(packed, 16 * slab + g, gate, 8 * slab + g);
                    expect_row_equals(packed, 16 * slab + 8 + g, up, 8 * slab + g);
                }
            }
            EXPECT_EQ(report.packed_bytes, 2 * inter / 64 * 4352 + 2 * inter * 4);
        }
    }
}

TEST(PackMatrix, TileBytesStandWhereTheFragmentSays) {
    const Mxfp4Bytes down = make_mxfp4(128, 256, 100, 120, 14);
    for (const KOrder order : kOrders) {
        PackedMatrix packed;
        PackReport report;
        ASSERT_TRUE(pack_matrix(down_source(down), order, false, &packed, &report).ok());
        ASSERT_EQ(packed.tiles.size(), 2U * 2U * 4352U);
        for (int row = 0; row < 128; ++row) {
            for (int col = 0; col < 256; ++col) {
                const std::uint8_t* tile = packed.tiles.data() + (row / 64 * 2 + col / 128) * 4352;
                ASSERT_EQ(fp4_tile_get(tile, row % 64, col % 128, order), down.nibble(row, col));
            }
        }
    }
}

TEST(PackMatrix, UnpackGivesTheCheckpointBack) {
    Mxfp4Bytes down = make_mxfp4(128, 512, 110, 136, 15);
    down.scale(0, 0) = 110;
    for (const bool chunk_form : {false, true}) {
        if (chunk_form) {
            for (int group = 0; group < 4; ++group) down.scale(0, group) = 200;
        }
        for (const KOrder order : kOrders) {
            PackedMatrix packed;
            PackReport report;
            ASSERT_TRUE(pack_matrix(down_source(down), order, false, &packed, &report).ok());
            const UnpackedMatrix back = unpack_matrix(packed);
            EXPECT_EQ(back.rows, 128);
            EXPECT_EQ(back.cols, 512);
            EXPECT_EQ(back.nibbles, down.nibbles);
            EXPECT_EQ(back.scales, down.scales);
            EXPECT_EQ(back.value(5, 77), down.value(5, 77));
            EXPECT_EQ(back.value(127, 511), down.value(127, 511));
        }
    }
}

// What rounding must do, by search: the nearest grid value under the raised scale.
struct Rounded {
    double value;
    bool changed;
};

Rounded round_by_search(double value, double unit) {
    Rounded best{0.0, value != 0.0};
    for (const double grid : {0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) {  // a tie keeps the smaller
        const double candidate = std::copysign(grid * unit, value);
        if (std::abs(candidate - value) < std::abs(best.value - value)) best.value = candidate;
    }
    best.changed = best.value != value;
    return best;
}

int top_of_chunk(const Mxfp4Bytes& matrix, int row, int chunk, int* span) {
    int low = 256;
    int high = -1;
    for (int group = 4 * chunk; group < 4 * chunk + 4; ++group) {
        bool zero = true;
        for (int k = 0; k < 32; ++k) zero = zero && matrix.nibble(row, 32 * group + k) % 8 == 0;
        if (zero) continue;
        low = std::min(low, matrix.code(row, 32 * group));
        high = std::max(high, matrix.code(row, 32 * group));
    }
    *span = high - low + 1;
    return high;
}

TEST(PackMatrix, AllowInexactRoundsAndCounts) {
    // Codes over 41 octaves: many chunks do not fit, some do.
    Mxfp4Bytes down = make_mxfp4(128, 512, 90, 130, 16);
    for (int row = 0; row < 128; row += 3) down.fill_group(row, row % 16, 0x08);
    for (const KOrder order : kOrders) {
        PackedMatrix packed;
        PackReport report;
        ASSERT_TRUE(pack_matrix(down_source(down), order, true, &packed, &report).ok());
        EXPECT_EQ(packed.form, Form::kChunkFactor);
        std::int64_t num_changed = 0;
        double worst = 0.0;
        for (int row = 0; row < 128; ++row) {
            double row_max = 0.0;
            for (int col = 0; col < 512; ++col) {
                row_max = std::max(row_max, std::abs(down.value(row, col)));
            }
            for (int col = 0; col < 512; ++col) {
                int span = 0;
                const int top = top_of_chunk(down, row, col / 128, &span);
                const double value = down.value(row, col);
                Rounded want{value, false};
                if (span > 27 && down.code(row, col) < top - 26) {
                    want = round_by_search(value, std::exp2(top - 26 - 127));
                }
                num_changed += want.changed;
                worst = std::max(worst, std::abs(want.value - value) / row_max);
                ASSERT_EQ(packed_value(packed, row, col), want.value) << row << ' ' << col;
            }
        }
        EXPECT_GT(num_changed, 1000);
        EXPECT_EQ(report.num_changed_values, num_changed);
        EXPECT_DOUBLE_EQ(report.worst_change, worst);
        EXPECT_LT(worst, std::exp2(-25));  // a quarter step at the bottom of 27 octaves
    }
}

TEST(PackMatrix, AllowInexactChangesNothingThatFits) {
    const Mxfp4Bytes down = make_mxfp4(64, 256, 100, 126, 17);
    PackedMatrix exact;
    PackedMatrix allowed;
    PackReport report;
    ASSERT_TRUE(pack_matrix(down_source(down), KOrder::kNatural, false, &exact, &report).ok());
    ASSERT_TRUE(pack_matrix(down_source(down), KOrder::kNatural, true, &allowed, &report).ok());
    EXPECT_EQ(exact.tiles, allowed.tiles);
    EXPECT_EQ(exact.factors, allowed.factors);
    EXPECT_EQ(report.num_changed_values, 0);
}

SharedSource shared_down(const Fp8Bytes& down) {
    return SharedSource{"shared expert", false, {}, {}, down.view()};
}

constexpr ScaleGrid kGrids[] = {ScaleGrid::kFp32Block128, ScaleGrid::kUe8m0Block128,
                                ScaleGrid::kUe8m0Block32, ScaleGrid::kUe8m0Row32};

TEST(PackFp8Matrix, EveryGridIsDirectDequantisation) {
    for (const ScaleGrid grid : kGrids) {
        const Fp8Bytes gate = make_fp8(384, 256, grid, 20);
        const Fp8Bytes up = make_fp8(384, 256, grid, 21);
        const SharedSource source{"shared expert", true, gate.view(), up.view(), {}};
        PackedFp8Matrix packed;
        ASSERT_TRUE(pack_fp8_matrix(source, &packed).ok());
        EXPECT_EQ(packed.order, KOrder::kNatural);
        const int groups = gate.col_step() == 32 ? 4 : 1;
        ASSERT_EQ(packed.scale_groups_per_chunk, groups);
        ASSERT_EQ(packed.scales.size(), static_cast<std::size_t>(12 * 2 * 64 * groups));
        for (int packed_row = 0; packed_row < 768; ++packed_row) {
            const Fp8Bytes& matrix = packed_row % 16 < 8 ? gate : up;
            const int row = packed_row / 16 * 8 + packed_row % 8;
            float codes[128] = {};
            for (int k = 0; k < 256; ++k) {
                if (k % 128 == 0) {
                    decode_fp8_tile_row(packed.tile(packed_row / 64, k / 128), packed_row % 64,
                                        packed.order, codes);
                }
                const int group = k % 128 * groups / 128;
                const auto at = static_cast<std::size_t>(
                    ((packed_row / 64 * 2 + k / 128) * 64 + packed_row % 64) * groups + group);
                ASSERT_EQ(packed.scale(packed_row, k / 128, group), packed.scales[at]);
                const double want = matrix.value(row, k);
                ASSERT_EQ(
                    static_cast<double>(codes[k % 128]) * static_cast<double>(packed.scales[at]),
                    want);
                ASSERT_EQ(packed_value(packed, packed_row, k), want) << packed_row << ' ' << k;
            }
        }
    }
}

void expect_refused(const Fp8Bytes& down, const std::vector<std::string>& words) {
    PackedFp8Matrix packed;
    const Status status = pack_fp8_matrix(shared_down(down), &packed);
    EXPECT_EQ(status.code(), Code::kBadCheckpoint);
    for (const std::string& word : words) {
        EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    }
}

TEST(PackFp8Matrix, BadScalesAndNanCodesAreRefused) {
    for (const ScaleGrid grid : kGrids) {
        const Fp8Bytes good = make_fp8(256, 256, grid, 22);
        PackedFp8Matrix packed;
        EXPECT_TRUE(pack_fp8_matrix(shared_down(good), &packed).ok());
        for (const unsigned code : {0x7FU, 0xFFU}) {
            Fp8Bytes bad = good;
            bad.codes[201 * 256 + 57] = static_cast<std::uint8_t>(code);
            expect_refused(bad, {"shared expert", "down", "row 201", "column 57"});
        }
        Fp8Bytes bad = good;
        const std::size_t last = good.scale_at(255, 255);
        if (good.is_fp32()) {
            for (const float scale : {0.0F, -1.0F, INFINITY, NAN}) {
                bad.fp32_scales[last] = scale;
                expect_refused(bad, {"shared expert", "down", "(1, 1)"});
            }
        } else {
            bad.ue8m0_scales[last] = 255;
            expect_refused(bad, {"shared expert", "down", "255"});
            bad.ue8m0_scales[last] = 0;
            EXPECT_TRUE(pack_fp8_matrix(shared_down(bad), &packed).ok());
        }
    }
}

TEST(PackFp8Matrix, GateAndUpMustAgreeOnK) {
    const Fp8Bytes gate = make_fp8(128, 128, ScaleGrid::kUe8m0Block128, 23);
    const Fp8Bytes up = make_fp8(128, 128, ScaleGrid::kUe8m0Row32, 24);
    const SharedSource source{"shared expert", true, gate.view(), up.view(), {}};
    PackedFp8Matrix packed;
    EXPECT_EQ(pack_fp8_matrix(source, &packed).code(), Code::kBadCheckpoint);
    // Different rows per scale are fine.
    const Fp8Bytes block = make_fp8(128, 128, ScaleGrid::kUe8m0Block32, 25);
    const SharedSource mixed{"shared expert", true, block.view(), up.view(), {}};
    ASSERT_TRUE(pack_fp8_matrix(mixed, &packed).ok());
    EXPECT_EQ(packed_value(packed, 3, 40), block.value(3, 40));
    EXPECT_EQ(packed_value(packed, 11, 40), up.value(3, 40));
}

}  // namespace
}  // namespace gcmoe::layout
