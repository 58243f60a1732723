// The tile order, against the layout written out as arrays of the fragment's own indices.
#include "layout/weight_tile.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "numerics/e5m2.hpp"

namespace gcmoe::layout {
namespace {

constexpr KOrder kOrders[] = {KOrder::kNatural, KOrder::kQuadBlock};

// The fragment indices of one weight, from loops over them rather than from k.
struct Place {
    int w, h, g, q, j, s, i;
    [[nodiscard]] int row() const { return 16 * w + 8 * h + g; }
    [[nodiscard]] int k(KOrder order) const {
        return order == KOrder::kNatural ? 32 * j + 16 * s + 4 * q + i : 32 * q + 8 * j + 4 * s + i;
    }
    [[nodiscard]] int lane() const { return 4 * g + q; }
};

template <class Visit>
void for_each_place(Visit visit) {
    for (int flat = 0; flat < 64 * 128; ++flat) {
        int rest = flat;
        const auto take = [&rest](int n) {
            const int digit = rest % n;
            rest /= n;
            return digit;
        };
        Place at{};
        at.i = take(4);
        at.s = take(2);
        at.j = take(4);
        at.q = take(4);
        at.g = take(8);
        at.h = take(2);
        at.w = take(4);
        visit(at);
    }
}

TEST(WeightTile, Fp4PlacesAreTheFragmentOrder) {
    for (const KOrder order : kOrders) {
        for_each_place([order](const Place& at) {
            const int word = ((at.w * 2 + at.h) * 32 + at.lane()) * 16 + 4 * at.j;
            const int n = 4 * at.s + at.i;
            const int magnitude_bit = 4 * n;
            const int sign_bit = at.s == 0 ? 8 * at.i + 7 : 8 * at.i + 3;
            const Fp4Place place = fp4_place(at.row(), at.k(order), order);
            ASSERT_EQ(place.magnitude_byte, word + magnitude_bit / 8);
            ASSERT_EQ(place.magnitude_shift, magnitude_bit % 8);
            ASSERT_EQ(place.sign_byte, word + sign_bit / 8);
            ASSERT_EQ(place.sign_shift, sign_bit % 8);
        });
    }
}

TEST(WeightTile, Fp4BitsAreBijective) {
    for (const KOrder order : kOrders) {
        std::set<int> bits;
        for (int row = 0; row < 64; ++row) {
            for (int k = 0; k < 128; ++k) {
                const Fp4Place place = fp4_place(row, k, order);
                for (int bit = 0; bit < 3; ++bit) {
                    bits.insert(place.magnitude_byte * 8 + place.magnitude_shift + bit);
                }
                bits.insert(place.sign_byte * 8 + place.sign_shift);
            }
        }
        EXPECT_EQ(bits.size(), 64U * 128U * 4U);
        EXPECT_EQ(*bits.begin(), 0);
        EXPECT_EQ(*bits.rbegin(), kFp4NibbleBytes * 8 - 1);
    }
}

TEST(WeightTile, ScalesFollowTheNibbles) {
    EXPECT_EQ(kFp4TileBytes, 4352);
    std::set<int> offsets;
    for (int row = 0; row < 64; ++row) {
        for (int group = 0; group < 4; ++group) {
            EXPECT_EQ(fp4_scale_offset(row, group), 4096 + row * 4 + group);
            offsets.insert(fp4_scale_offset(row, group));
        }
    }
    EXPECT_EQ(offsets.size(), 256U);
}

TEST(WeightTile, SetThenGetForEveryWeight) {
    std::mt19937 random(1);
    for (const KOrder order : kOrders) {
        std::vector<std::uint8_t> tile(kFp4TileBytes);
        for (auto& byte : tile) byte = static_cast<std::uint8_t>(random());
        std::vector<std::uint8_t> codes(64 * 128);
        for (auto& code : codes) code = static_cast<std::uint8_t>(random() & 15);
        for (int at = 0; at < 64 * 128; ++at) {
            fp4_tile_set(tile.data(), at / 128, at % 128, order,
                         codes[static_cast<std::size_t>(at)]);
        }
        for (int at = 0; at < 64 * 128; ++at) {
            ASSERT_EQ(fp4_tile_get(tile.data(), at / 128, at % 128, order),
                      codes[static_cast<std::size_t>(at)]);
        }
    }
}

TEST(WeightTile, WordsWeaveAsThePlacesSay) {
    std::mt19937 random(2);
    for (int round = 0; round < 2000; ++round) {
        const auto codes = static_cast<std::uint32_t>(random());
        std::uint32_t want = 0;
        for (unsigned n = 0; n < 8; ++n) {
            const unsigned code = codes >> (4 * n) & 15;
            const unsigned sign_nibble = n < 4 ? 2 * n + 1 : 2 * (n - 4);
            want |= (code & 7) << (4 * n) | (code >> 3) << (4 * sign_nibble + 3);
        }
        ASSERT_EQ(fp4_weave_word(codes), want) << std::hex << codes;
        ASSERT_EQ(fp4_unweave_word(want), codes) << std::hex << codes;
    }
}

// The eight instructions of the GPU's decoder, on one word: both halves' operand bytes in order.
std::uint64_t decode_like_the_gpu(std::uint32_t word, unsigned v) {
    const std::uint64_t table = (v * 0x04040400U + 0x0A080400U) |
                                static_cast<std::uint64_t>(v * 0x04040404U + 0x12100E0CU) << 32;
    const auto permute = [table](std::uint32_t selector) {
        std::uint32_t bytes = 0;
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned pick = selector >> (4 * i) & 7;
            bytes |= static_cast<std::uint32_t>(table >> (8 * pick) & 0xFF) << (8 * i);
        }
        return bytes;
    };
    const std::uint32_t selector = word & 0x77777777U;
    const std::uint32_t first = permute(selector) | (word & 0x80808080U);
    const std::uint32_t second = permute(selector >> 16) | (word << 4 & 0x80808080U);
    return first | static_cast<std::uint64_t>(second) << 32;
}

TEST(WeightTile, GpuDecodeOfAWordGivesTheRowDecode) {
    std::mt19937 random(3);
    for (const KOrder order : kOrders) {
        std::vector<std::uint8_t> tile(kFp4TileBytes);
        for (auto& byte : tile) byte = static_cast<std::uint8_t>(random());
        for (int at = 4096; at < kFp4TileBytes; ++at) {
            tile[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random() % 27);
        }
        float row_values[128];
        for_each_place([&](const Place& at) {
            if (at.j == 0 && at.q == 0 && at.s == 0 && at.i == 0) {
                decode_fp4_tile_row(tile.data(), at.row(), order, row_values);
            }
            const std::uint8_t* bytes =
                tile.data() + ((at.w * 2 + at.h) * 32 + at.lane()) * 16 + 4 * at.j;
            const std::uint32_t word =
                static_cast<std::uint32_t>(bytes[0] | bytes[1] << 8 | bytes[2] << 16) |
                static_cast<std::uint32_t>(bytes[3]) << 24;
            const int k = at.k(order);
            const unsigned v = tile[static_cast<std::size_t>(4096 + at.row() * 4 + k / 32)];
            const std::uint64_t operands = decode_like_the_gpu(word, v);
            const auto code = static_cast<std::uint8_t>(operands >> (8 * (4 * at.s + at.i)));
            ASSERT_EQ(row_values[k], numerics::e5m2_to_float(code)) << at.row() << ' ' << k;
        });
    }
}

TEST(WeightTile, RowDecodeIsGetTimesScale) {
    std::mt19937 random(4);
    for (const KOrder order : kOrders) {
        std::vector<std::uint8_t> tile(kFp4TileBytes);
        for (auto& byte : tile) byte = static_cast<std::uint8_t>(random());
        for (int at = 4096; at < kFp4TileBytes; ++at) {
            tile[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random() % 27);
        }
        for (int row = 0; row < 64; ++row) {
            float values[128];
            decode_fp4_tile_row(tile.data(), row, order, values);
            for (int k = 0; k < 128; ++k) {
                const float weight =
                    numerics::e2m1_to_float(fp4_tile_get(tile.data(), row, k, order));
                const int v = fp4_tile_scale(tile.data(), row, k / 32);
                ASSERT_EQ(values[k], std::ldexp(weight, v - 13)) << row << ' ' << k;
                ASSERT_EQ(std::signbit(values[k]), std::signbit(weight));
            }
        }
    }
}

TEST(WeightTile, Fp8OffsetsAreTheFragmentOrderAndDecode) {
    std::mt19937 random(5);
    for (const KOrder order : kOrders) {
        std::vector<std::uint8_t> tile(kFp8TileBytes);
        for (auto& byte : tile) byte = static_cast<std::uint8_t>(random() % 0x7F);
        std::set<int> offsets;
        for_each_place([&](const Place& at) {
            const int want = ((at.w * 2 + at.h) * 32 + at.lane()) * 32 + 8 * at.j + 4 * at.s + at.i;
            ASSERT_EQ(fp8_tile_offset(at.row(), at.k(order), order), want);
            offsets.insert(want);
        });
        EXPECT_EQ(offsets.size(), 8192U);
        for (int row = 0; row < 64; ++row) {
            float values[128];
            decode_fp8_tile_row(tile.data(), row, order, values);
            for (int k = 0; k < 128; ++k) {
                const auto offset = static_cast<std::size_t>(fp8_tile_offset(row, k, order));
                ASSERT_EQ(values[k], numerics::e4m3_to_float(tile[offset]));
            }
        }
    }
}

TEST(WeightTile, ActivationBytesMeetTheirWeights) {
    for (int k = 0; k < 128; ++k) {
        EXPECT_EQ(k_byte_position(KOrder::kNatural, k), k);
        EXPECT_EQ(k_of_byte_position(KOrder::kNatural, k), k);
    }
    // Byte 32j+16s+4q+i of a row is what wgmma multiplies with fragment place (q, j, s, i).
    for_each_place([](const Place& at) {
        const int byte = 32 * at.j + 16 * at.s + 4 * at.q + at.i;
        ASSERT_EQ(k_byte_position(KOrder::kQuadBlock, at.k(KOrder::kQuadBlock)), byte);
        ASSERT_EQ(k_of_byte_position(KOrder::kQuadBlock, byte), at.k(KOrder::kQuadBlock));
    });
}

TEST(WeightTile, RingSwizzleIsXorOfUnits) {
    std::set<int> offsets;
    for (int row = 0; row < 32; ++row) {
        for (int byte = 0; byte < 128; ++byte) {
            const int linear = row * 128 + byte;
            // The 128-byte swizzle of the hardware: address bits 4..6 XOR bits 7..9.
            ASSERT_EQ(ring_byte_offset(row, byte), linear ^ ((linear >> 7 & 7) << 4));
            offsets.insert(ring_byte_offset(row, byte));
        }
    }
    EXPECT_EQ(offsets.size(), 32U * 128U);
    EXPECT_EQ(*offsets.rbegin(), 32 * 128 - 1);
}

TEST(WeightTile, FirstGemmRowsAreBijective) {
    for (const int inter : {128, 768, 2304}) {
        std::set<std::pair<int, bool>> seen;
        for (int packed = 0; packed < 2 * inter; ++packed) {
            const FirstGemmRow row = first_gemm_row(packed);
            EXPECT_GE(row.column, 0);
            EXPECT_LT(row.column, inter);
            seen.insert({row.column, row.is_up});
            ASSERT_EQ(first_gemm_packed_row(row), packed);
            const int slab = packed / 16;
            EXPECT_EQ(row.is_up, packed % 16 >= 8);
            EXPECT_EQ(row.column, slab * 8 + packed % 8);
            // A task's 256 rows hold its 128 columns.
            EXPECT_EQ(row.column / 128, packed / 256);
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * inter));
    }
}

}  // namespace
}  // namespace gcmoe::layout
