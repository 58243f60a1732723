// Compiled once per SIMD target by Highway's foreach_target; the calls at the end take the best one
// that this machine supports.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm_rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "cpu/gemm_rows.hpp"
#include "numerics/bits.hpp"
#include "numerics/scale_window.hpp"
#include "numerics/ue8m0.hpp"

HWY_BEFORE_NAMESPACE();
namespace gcmoe::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes; narrower machines take the 16 virtual lanes in pieces of N.
using Floats = hn::CappedTag<float, kLanes>;
using Words = hn::Rebind<std::uint32_t, Floats>;
using Ints = hn::Rebind<std::int32_t, Floats>;
using Bytes = hn::Repartition<std::uint8_t, Floats>;
using Four = hn::FixedTag<float, 4>;
using FloatVec = hn::Vec<Floats>;
using WordVec = hn::Vec<Words>;

constexpr int kN = static_cast<int>(hn::MaxLanes(Floats()));

// Weight rows that share one load of an activation: as many as 32 registers hold. With 16 registers
// a second row would be loaded again and again itself.
constexpr int kRowsAtOnce = kN == kLanes ? 2 : 1;

// Activation rows and sums (of 16 lanes) that one pass keeps at hand: 16 KiB each.
constexpr int kPassRows = 32;
constexpr int kPassSums = 256;

// One piece of N lanes of one weight row's chunk, decoded.
struct Piece {
    FloatVec weights[kLaneK];
    FloatVec scale;
    float factor;  // of the row and chunk
};

// Byte shuffles within 16 bytes: of each word, two bytes into the lower or upper half. 0x80 = zero.
alignas(16) constexpr std::uint8_t kEvenSigns[2][16] = {
    {0, 2, 0x80, 0x80, 4, 6, 0x80, 0x80, 8, 10, 0x80, 0x80, 12, 14, 0x80, 0x80},
    {0x80, 0x80, 0, 2, 0x80, 0x80, 4, 6, 0x80, 0x80, 8, 10, 0x80, 0x80, 12, 14}};
alignas(16) constexpr std::uint8_t kOddSigns[2][16] = {
    {1, 3, 0x80, 0x80, 5, 7, 0x80, 0x80, 9, 11, 0x80, 0x80, 13, 15, 0x80, 0x80},
    {0x80, 0x80, 1, 3, 0x80, 0x80, 5, 7, 0x80, 0x80, 9, 11, 0x80, 0x80, 13, 15}};

// Twice the E2M1 value of a code.
alignas(16) constexpr std::int8_t kTwiceE2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                    0, -1, -2, -3, -4, -6, -8, -12};

// Byte of the four window positions that a lane takes, by order, as a word's shuffle.
struct GroupBytes {
    alignas(64) std::uint8_t of[2][kLanes * 4];
};
constexpr GroupBytes make_group_bytes() {
    GroupBytes bytes{};
    for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
            bytes.of[0][lane * 4 + i] = static_cast<std::uint8_t>(i == 0 ? lane % 4 : 0x80);
            bytes.of[1][lane * 4 + i] = static_cast<std::uint8_t>(i == 0 ? lane / 4 : 0x80);
        }
    }
    return bytes;
}
constexpr GroupBytes kGroupBytes = make_group_bytes();

// A weight as decoded is an integer, twice its E2M1 value, times 2^24: what a byte at the top of an
// int32 is. So a window position v scales by 2^(v - 13 - 25).
constexpr std::uint32_t kScaleExponent = 127 - numerics::kWindowExponent - 25;

// Signs of four weights of a word to bit 3 of the bytes that hold their magnitudes.
HWY_INLINE hn::Vec<Bytes> place_signs(hn::Vec<Bytes> shifted, hn::Vec<Bytes> plain,
                                      const std::uint8_t (&shuffles)[2][16]) {
    const Bytes d;
    return hn::Or(hn::TableLookupBytesOr0(shifted, hn::LoadDup128(d, shuffles[0])),
                  hn::TableLookupBytesOr0(plain, hn::LoadDup128(d, shuffles[1])));
}

// Byte b of every word, as int8 and times 2^24, to a float.
template <int kByte>
HWY_INLINE FloatVec byte_to_float(WordVec bytes) {
    const Words d;
    const WordVec high = hn::ShiftLeft<24 - 8 * kByte>(bytes);
    const WordVec only = kByte == 0 ? high : hn::And(high, hn::Set(d, 0xFF000000U));
    return hn::ConvertTo(Floats(), hn::BitCast(Ints(), only));
}

// Words at `row` of an FP4 tile: 8 weights each.
HWY_INLINE void decode_fp4(const std::uint8_t* row, Piece* out) {
    const Words d;
    const Bytes bytes;
    const WordVec words = hn::BitCast(d, hn::LoadU(bytes, row));
    const WordVec shifted = hn::ShiftRight<4>(words);
    const auto sevens = hn::Set(bytes, 7);
    const auto eights = hn::Set(bytes, 8);
    const auto plain8 = hn::BitCast(bytes, words);
    const auto shifted8 = hn::BitCast(bytes, shifted);
    const auto even =
        hn::OrAnd(hn::And(plain8, sevens), place_signs(shifted8, plain8, kEvenSigns), eights);
    const auto odd =
        hn::OrAnd(hn::And(shifted8, sevens), place_signs(shifted8, plain8, kOddSigns), eights);
    const auto table =
        hn::BitCast(bytes, hn::LoadDup128(hn::Repartition<std::int8_t, Bytes>(), kTwiceE2m1));
    const WordVec evens = hn::BitCast(d, hn::TableLookupBytes(table, even));
    const WordVec odds = hn::BitCast(d, hn::TableLookupBytes(table, odd));
    out->weights[0] = byte_to_float<0>(evens);
    out->weights[1] = byte_to_float<0>(odds);
    out->weights[2] = byte_to_float<1>(evens);
    out->weights[3] = byte_to_float<1>(odds);
    out->weights[4] = byte_to_float<2>(evens);
    out->weights[5] = byte_to_float<2>(odds);
    out->weights[6] = byte_to_float<3>(evens);
    out->weights[7] = byte_to_float<3>(odds);
}

// The scales of lanes `at`.. from a row's four window positions.
HWY_INLINE FloatVec window_scales(const std::uint8_t* positions, layout::KOrder order, int at) {
    const Words d;
    const Bytes bytes;
    std::uint32_t word;
    std::memcpy(&word, positions, sizeof(word));
    const auto which =
        hn::Load(bytes, kGroupBytes.of[order == layout::KOrder::kNatural ? 0 : 1] + at * 4);
    const auto v = hn::TableLookupBytesOr0(hn::BitCast(bytes, hn::Set(d, word)), which);
    const WordVec exponent = hn::Add(hn::BitCast(d, v), hn::Set(d, kScaleExponent));
    return hn::BitCast(Floats(), hn::ShiftLeft<23>(exponent));
}

// E4M3 codes in the top bytes of words (the rest is ignored) to floats. Packed weights hold no NaN.
template <bool kMayBeNan>
HWY_INLINE FloatVec e4m3_to_float(WordVec top) {
    const Words d;
    const Floats df;
    const WordVec magnitude = hn::And(hn::ShiftRight<4>(top), hn::Set(d, 0x07F00000U));
    // Exponents of bias 7 to bias 127; 2^-7 (1 + m / 8) where the code is a subnormal m / 8 * 2^-6.
    const FloatVec normal = hn::BitCast(df, hn::Add(magnitude, hn::Set(d, 120U << 23)));
    const FloatVec subnormal = hn::MulSub(normal, hn::Set(df, 2.0F), hn::Set(df, 0.015625F));
    const auto is_small =
        hn::RebindMask(df, hn::Lt(hn::BitCast(Ints(), magnitude), hn::Set(Ints(), 8 << 20)));
    FloatVec value = hn::IfThenElse(is_small, subnormal, normal);
    if (kMayBeNan) {
        const auto is_nan = hn::RebindMask(df, hn::Eq(magnitude, hn::Set(d, 0x07F00000U)));
        const FloatVec nan = hn::BitCast(df, hn::Set(d, numerics::kFloatQuietNanBits));
        value = hn::IfThenElse(is_nan, nan, value);
    }
    return hn::BitCast(df, hn::OrAnd(hn::BitCast(d, value), top, hn::Set(d, 0x80000000U)));
}

// Half s of an FP8 row's words: weights 4 s .. 4 s + 3.
template <bool kMayBeNan>
HWY_INLINE void decode_fp8_half(WordVec words, FloatVec* weights) {
    weights[0] = e4m3_to_float<kMayBeNan>(hn::ShiftLeft<24>(words));
    weights[1] = e4m3_to_float<kMayBeNan>(hn::ShiftLeft<16>(words));
    weights[2] = e4m3_to_float<kMayBeNan>(hn::ShiftLeft<8>(words));
    weights[3] = e4m3_to_float<kMayBeNan>(words);
}

HWY_INLINE void decode_fp8(const std::uint8_t* row, Piece* out) {
    const Words d;
    WordVec first;
    WordVec second;
    hn::LoadInterleaved2(d, reinterpret_cast<const std::uint32_t*>(row), first, second);
    decode_fp8_half<false>(first, out->weights);
    decode_fp8_half<false>(second, out->weights + 4);
}

// A chunk of the activations, as a piece meets it.
struct ChunkRows {
    const float* values;  // (num_rows, 8, 16)
    const float* scales;  // (num_rows, 4)
    int num_rows;
    layout::KOrder order;
};

// The sums of lanes at.. of one weight row and one activation row, one chunk further.
template <bool kHasFactor>
HWY_INLINE void add_part(FloatVec part, const Piece& piece, FloatVec scale, float* sum) {
    const Floats d;
    FloatVec term = hn::Mul(hn::Mul(part, piece.scale), scale);
    if (kHasFactor) term = hn::Mul(term, hn::Set(d, piece.factor));
    hn::Store(hn::Add(hn::Load(d, sum), term), d, sum);
}

// Adds one chunk to lanes at.. of kRowsAtOnce weight rows' sums: (kRowsAtOnce, row_floats).
template <bool kHasFactor>
HWY_INLINE void add_pieces(const Piece (&pieces)[kRowsAtOnce], const ChunkRows& rows, int at,
                           std::size_t row_floats, float* HWY_RESTRICT sums) {
    const Floats d;
    const bool by_lane = rows.order == layout::KOrder::kNatural;
    for (int t = 0; t < rows.num_rows; ++t) {
        const float* values = rows.values + t * (kLaneK * kLanes) + at;
        FloatVec parts[kRowsAtOnce];
        const FloatVec first = hn::Load(d, values);
        for (int r = 0; r < kRowsAtOnce; ++r) parts[r] = hn::Mul(pieces[r].weights[0], first);
        for (int n = 1; n < kLaneK; ++n) {
            const FloatVec x = hn::Load(d, values + n * kLanes);
            for (int r = 0; r < kRowsAtOnce; ++r) {
                parts[r] = hn::MulAdd(pieces[r].weights[n], x, parts[r]);
            }
        }
        const float* scales = rows.scales + t * kScalesPerChunk;
        const FloatVec scale = by_lane ? hn::LoadDup128(d, scales) : hn::Set(d, scales[0]);
        float* sum = sums + t * kLanes + at;
        for (int r = 0; r < kRowsAtOnce; ++r) {
            add_part<kHasFactor>(parts[r], pieces[r], scale,
                                 sum + static_cast<std::size_t>(r) * row_floats);
        }
    }
}

// The fixed tree over 16 lanes; NaN in one form.
HWY_INLINE float add_lanes(const float* lanes) {
    const Four d;
    const auto low = hn::Add(hn::Load(d, lanes), hn::Load(d, lanes + 8));
    const auto high = hn::Add(hn::Load(d, lanes + 4), hn::Load(d, lanes + 12));
    alignas(16) float four[4];
    hn::Store(hn::Add(low, high), d, four);
    const float sum = (four[0] + four[2]) + (four[1] + four[3]);
    return sum == sum ? sum : numerics::bits_to_float(numerics::kFloatQuietNanBits);
}

// What differs between FP4 and FP8 tiles: the pieces of a row's chunk, and factors.
struct Fp4Rows {
    const layout::PackedMatrix& matrix;

    HWY_INLINE void piece(int row, int chunk, int at, Piece* out) const {
        const std::uint8_t* tile = matrix.tile(row / layout::kTileRows, chunk);
        const int in_tile = row % layout::kTileRows;
        decode_fp4(tile + layout::fp4_word_offset(in_tile, 0, 0) + at * 4, out);
        out->scale = window_scales(tile + layout::fp4_scale_offset(in_tile, 0), matrix.order, at);
        out->factor = matrix.factor(row, chunk);
    }
    HWY_INLINE float row_factor(int row) const { return matrix.factor(row, 0); }
};

struct Fp8Rows {
    const layout::PackedFp8Matrix& matrix;

    HWY_INLINE void piece(int row, int chunk, int at, Piece* out) const {
        const std::uint8_t* tile = matrix.tile(row / layout::kTileRows, chunk);
        const int in_tile = row % layout::kTileRows;
        decode_fp8(tile + in_tile * layout::kChunkK + at * kLaneK, out);
        const float* scales = matrix.scales.data() + matrix.scale_idx(row, chunk);
        const Floats d;
        out->scale =
            matrix.scale_groups_per_chunk == 1 ? hn::Set(d, scales[0]) : hn::LoadDup128(d, scales);
        out->factor = 1.0F;
    }
    HWY_INLINE float row_factor(int) const { return 1.0F; }
};

// One pass: some rows of one tile of weights, some activation rows, all of K.
struct Pass {
    int first_row;
    int num_rows;  // a multiple of kRowsAtOnce
    int first_t;
    int num_t;
};

// lanes: (num_rows, num_t, 16).
template <bool kHasFactor, class Matrix>
HWY_INLINE void multiply_pass(const Matrix& weights, const Pass& pass, const ActivationRows& rows,
                              float* HWY_RESTRICT lanes) {
    const std::size_t row_floats = static_cast<std::size_t>(pass.num_t) * kLanes;
    std::memset(lanes, 0, static_cast<std::size_t>(pass.num_rows) * row_floats * sizeof(float));
    for (int c = 0; c < rows.chunks; ++c) {
        const auto at_t = static_cast<std::size_t>(c * rows.num_rows + pass.first_t);
        const ChunkRows chunk{rows.values + at_t * layout::kChunkK,
                              rows.scales + at_t * kScalesPerChunk, pass.num_t,
                              weights.matrix.order};
        for (int r = 0; r < pass.num_rows; r += kRowsAtOnce) {
            for (int at = 0; at < kLanes; at += kN) {
                Piece pieces[kRowsAtOnce];
                for (int i = 0; i < kRowsAtOnce; ++i) {
                    weights.piece(pass.first_row + r + i, c, at, &pieces[i]);
                }
                add_pieces<kHasFactor>(pieces, chunk, at, row_floats,
                                       lanes + static_cast<std::size_t>(r) * row_floats);
            }
        }
    }
}

// sums: (rows.num_rows, stride), at the pass's first row.
template <bool kHasFactor, class Matrix>
HWY_INLINE void store_sums(const Matrix& weights, const Pass& pass, const float* lanes,
                           std::size_t stride, float* sums) {
    for (int t = 0; t < pass.num_t; ++t) {
        float* to = sums + static_cast<std::size_t>(pass.first_t + t) * stride;
        for (int r = 0; r < pass.num_rows; ++r) {
            const float sum = add_lanes(lanes + (r * pass.num_t + t) * kLanes);
            to[r] = kHasFactor ? sum : sum * weights.row_factor(pass.first_row + r);
        }
    }
}

template <bool kHasFactor, class Matrix>
void multiply(const Matrix& weights, int first_row, int num_rows, const ActivationRows& rows,
              float* sums) {
    HWY_ALIGN float lanes[kPassSums * kLanes];
    const int most_t = std::min(rows.num_rows, kPassRows);
    const int most = std::min(kPassSums / most_t / kRowsAtOnce * kRowsAtOnce, layout::kTileRows);
    for (int r = 0; r < num_rows;) {
        const int in_tile = (first_row + r) % layout::kTileRows;
        const int num = std::min({most, num_rows - r, layout::kTileRows - in_tile});
        for (int t = 0; t < rows.num_rows; t += most_t) {
            const Pass pass{first_row + r, num, t, std::min(most_t, rows.num_rows - t)};
            multiply_pass<kHasFactor>(weights, pass, rows, lanes);
            store_sums<kHasFactor>(weights, pass, lanes, static_cast<std::size_t>(num_rows),
                                   sums + r);
        }
        r += num;
    }
}

void multiply_fp4_rows(const layout::PackedMatrix& matrix, int first_row, int num_rows,
                       const ActivationRows& rows, float* sums) {
    const Fp4Rows weights{matrix};
    if (matrix.form == layout::PackedMatrix::DecodeForm::kChunkFactor) {
        multiply<true>(weights, first_row, num_rows, rows, sums);
    } else {
        multiply<false>(weights, first_row, num_rows, rows, sums);
    }
}

void multiply_fp8_rows(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
                       const ActivationRows& rows, float* sums) {
    multiply<false>(Fp8Rows{matrix}, first_row, num_rows, rows, sums);
}

void decode_code_words(const CodeWords& codes, float* values) {
    const Words d;
    const Floats df;
    for (int half = 0; half < 2; ++half) {
        for (int at = 0; at < kLanes; at += kN) {
            FloatVec four[4];
            decode_fp8_half<true>(hn::Load(d, codes.words + half * kLanes + at), four);
            for (int i = 0; i < 4; ++i) {
                hn::Store(four[i], df, values + (4 * half + i) * kLanes + at);
            }
        }
    }
}

}  // namespace gcmoe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gcmoe::cpu {
namespace {

HWY_EXPORT(multiply_fp4_rows);
HWY_EXPORT(multiply_fp8_rows);
HWY_EXPORT(decode_code_words);

}  // namespace

void multiply_fp4(const layout::PackedMatrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums) {
    GCMOE_CHECK(rows.num_rows >= 1 && rows.num_rows <= kMaxGemmRows, rows.num_rows);
    HWY_DYNAMIC_DISPATCH(multiply_fp4_rows)(matrix, first_row, num_rows, rows, sums);
}

void multiply_fp8(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums) {
    GCMOE_CHECK(rows.num_rows >= 1 && rows.num_rows <= kMaxGemmRows, rows.num_rows);
    HWY_DYNAMIC_DISPATCH(multiply_fp8_rows)(matrix, first_row, num_rows, rows, sums);
}

// Word q of unit 2 j + s belongs to lane 4 q + j of half s, in the ring as in natural order.
void load_code_words(const std::uint8_t* chunk, int row, CodeWords* out) {
    for (int unit = 0; unit < 8; ++unit) {
        const std::uint8_t* from = chunk + layout::ring_byte_offset(row, 16 * unit);
        std::uint32_t* to = out->words + unit % 2 * kLanes + unit / 2;
        for (int q = 0; q < 4; ++q) std::memcpy(to + 4 * q, from + 4 * q, 4);
    }
}

void load_code_words(const std::uint8_t* codes, CodeWords* out) {
    // A ring row whose swizzle moves nothing.
    load_code_words(codes, 0, out);
}

void decode_codes(const CodeWords& codes, float* values) {
    HWY_DYNAMIC_DISPATCH(decode_code_words)(codes, values);
}

void decode_scale_word(std::uint32_t word, ActivationScale format, float* scales) {
    for (int g = 0; g < kScalesPerChunk; ++g) {
        scales[g] = format == ActivationScale::kFp32K128
                        ? numerics::bits_to_float(word)
                        : numerics::ue8m0_to_float(static_cast<std::uint8_t>(word >> (8 * g)));
    }
}

}  // namespace gcmoe::cpu
#endif  // HWY_ONCE
