#include "cpu/gemm_rows.hpp"

#include <array>
#include <cstring>

#include "numerics/bits.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/quantise.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::cpu {
namespace {

constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline void load_lanes(const float* from, Lanes* to) { std::memcpy(to, from, sizeof(Lanes)); }

// The fixed tree: lane i + lane i + 8, then 4, 2, 1 apart.
inline float add_lanes(const Lanes& lanes) {
    float eight[8];
    for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Dot product of n values, n a multiple of 16.
inline float dot(const float* a, const float* b, int n) {
    Lanes sum{};
    for (int k = 0; k < n; k += kLanes) {
        Lanes x;
        Lanes y;
        load_lanes(a + k, &x);
        load_lanes(b + k, &y);
        sum += x * y;
    }
    return add_lanes(sum);
}

std::array<float, 256> make_e4m3_table() {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code) {
        table[static_cast<std::size_t>(code)] =
            numerics::e4m3_to_float(static_cast<std::uint8_t>(code));
    }
    return table;
}

// sum += one chunk of one weight row, group by group, each times its activation scale.
inline float add_chunk(float sum, const float* weights, const float* values, const float* scales,
                       int groups) {
    const int width = layout::kChunkK / groups;
    for (int g = 0; g < groups; ++g) {
        sum += dot(weights + g * width, values + g * width, width) * scales[g];
    }
    return sum;
}

// A chunk of one FP8 weight row with its scales, one per K128 or K32.
struct Fp8Chunk {
    const float* weights;  // (128)
    const float* scales;   // (groups)
    int groups;
};

// sum += one such chunk; groups of the finer of both scale grids.
inline float add_fp8_chunk(float sum, const Fp8Chunk& weight, const float* values,
                           const float* scales, int groups) {
    const int steps = weight.groups > groups ? weight.groups : groups;
    const int width = layout::kChunkK / steps;
    for (int g = 0; g < steps; ++g) {
        const float part = dot(weight.weights + g * width, values + g * width, width);
        sum += (part * weight.scales[g * weight.groups / steps]) * scales[g * groups / steps];
    }
    return sum;
}

}  // namespace

void multiply_fp4(const layout::PackedMatrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums) {
    const bool chunk_form = matrix.form == layout::PackedMatrix::DecodeForm::kChunkFactor;
    const std::size_t stride = static_cast<std::size_t>(rows.chunks) * layout::kChunkK;
    const int groups = rows.groups_per_chunk;
    alignas(64) float weights[layout::kChunkK];
    for (int r = 0; r < num_rows; ++r) {
        const int row = first_row + r;
        float* out = sums + static_cast<std::size_t>(r) * static_cast<std::size_t>(rows.num_rows);
        for (int t = 0; t < rows.num_rows; ++t) out[t] = 0.0F;
        for (int c = 0; c < rows.chunks; ++c) {
            const std::uint8_t* tile = matrix.tile(row / layout::kTileRows, c);
            layout::decode_fp4_tile_row(tile, row % layout::kTileRows, matrix.order, weights);
            const float factor = chunk_form ? matrix.factor(row, c) : 1.0F;
            for (int t = 0; t < rows.num_rows; ++t) {
                const float* values = rows.values + static_cast<std::size_t>(t) * stride +
                                      static_cast<std::size_t>(c) * layout::kChunkK;
                const float* scales = rows.scales + (t * rows.chunks + c) * groups;
                if (chunk_form) {
                    out[t] += add_chunk(0.0F, weights, values, scales, groups) * factor;
                } else {
                    out[t] = add_chunk(out[t], weights, values, scales, groups);
                }
            }
        }
        if (chunk_form) continue;
        const float factor = matrix.factor(row, 0);
        for (int t = 0; t < rows.num_rows; ++t) out[t] *= factor;
    }
}

void multiply_fp8(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums) {
    const std::size_t stride = static_cast<std::size_t>(rows.chunks) * layout::kChunkK;
    const int groups = rows.groups_per_chunk;
    alignas(64) float weights[layout::kChunkK];
    for (int r = 0; r < num_rows; ++r) {
        const int row = first_row + r;
        float* out = sums + static_cast<std::size_t>(r) * static_cast<std::size_t>(rows.num_rows);
        for (int t = 0; t < rows.num_rows; ++t) out[t] = 0.0F;
        for (int c = 0; c < rows.chunks; ++c) {
            const std::uint8_t* tile = matrix.tile(row / layout::kTileRows, c);
            layout::decode_fp8_tile_row(tile, row % layout::kTileRows, matrix.order, weights);
            const Fp8Chunk weight{weights, matrix.scales.data() + matrix.scale_idx(row, c),
                                  matrix.scale_groups_per_chunk};
            for (int t = 0; t < rows.num_rows; ++t) {
                const float* values = rows.values + static_cast<std::size_t>(t) * stride +
                                      static_cast<std::size_t>(c) * layout::kChunkK;
                const float* scales = rows.scales + (t * rows.chunks + c) * groups;
                out[t] = add_fp8_chunk(out[t], weight, values, scales, groups);
            }
        }
    }
}

void decode_scale_word(std::uint32_t word, int groups_per_chunk, float* scales) {
    if (groups_per_chunk == 1) {
        scales[0] = numerics::bits_to_float(word);
        return;
    }
    for (int g = 0; g < groups_per_chunk; ++g) {
        scales[g] = numerics::ue8m0_to_float(static_cast<std::uint8_t>(word >> (8 * g)));
    }
}

void requantise_row(const float* values, ActivationScale format, std::uint8_t* codes,
                    std::uint32_t* scale_word) {
    if (format == ActivationScale::kFp32K128) {
        float scale = 0.0F;
        numerics::quantise_e4m3_fp32(values, layout::kChunkK, codes, &scale);
        *scale_word = numerics::float_to_bits(scale);
        return;
    }
    *scale_word = 0;
    for (int g = 0; g < layout::kGroupsPerChunk; ++g) {
        const int first = g * layout::kScaleGroupK;
        std::uint8_t code = 0;
        numerics::quantise_e4m3_ue8m0(values + first, layout::kScaleGroupK, codes + first, &code);
        *scale_word |= std::uint32_t{code} << (8 * g);
    }
}

void decode_codes(const std::uint8_t* codes, int n, float* values) {
    static const std::array<float, 256> table = make_e4m3_table();
    for (int k = 0; k < n; ++k) values[k] = table[codes[k]];
}

}  // namespace gcmoe::cpu
