// One element of a generated layer, as a function of its place. Host and device, integer hashes and
// one or two float multiplies: a kernel that calls these writes the bytes the host writes.
//
// A matrix has a seed made of (hidden, inter, expert, matrix); element (row, column) is the hash of
// seed + row * columns + column. Scale rules other than "normal" replace scale codes and leave the
// nibbles alone.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "gcmoe/weights.hpp"
#include "numerics/bf16.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {

enum class ExpertMatrix : std::uint8_t { kGate, kUp, kDown };

inline constexpr float kGeneratedWeightDeviation = 0.02F;
inline constexpr float kGeneratedBiasDeviation = 0.1F;
inline constexpr int kGroupsPerK128 = 4;     // K32 groups
inline constexpr int kSpanCentreCode = 121;  // 2^-6, where the codes of "normal" lie

// How the scale codes of routed matrices come about. Passed to kernels by value.
struct ScaleRule {
    enum class Kind : std::uint8_t {
        kNormal,       // what quantising gives
        kRowsOfCodes,  // row r of every matrix has codes[r % num_codes] throughout
        kSpan,         // see span_scale_code
    };
    static constexpr int kMaxCodes = 64;

    Kind kind = Kind::kNormal;
    std::uint8_t codes[kMaxCodes] = {};
    int num_codes = 0;
    int span_per_k128 = 0;    // octaves between smallest and largest code of a row's K128
    int span_per_expert = 0;  // octaves between smallest and largest code of a matrix
};

// One routed matrix. Passed to kernels by value.
struct GeneratedMatrix {
    std::uint64_t seed = 0;
    int rows = 0;
    int cols = 0;  // a multiple of 32
};

// What a seed is for: keeps the streams of one layer apart.
enum class SeedUse : std::uint8_t { kRoutedWeight, kSharedWeight, kBias, kScaleCode };

GCMOE_HD constexpr std::uint64_t generated_seed(SeedUse use, int hidden, int inter, int expert_idx,
                                                ExpertMatrix matrix) {
    std::uint64_t seed = numerics::hash_combine(0, static_cast<std::uint64_t>(use));
    seed = numerics::hash_combine(seed, static_cast<std::uint64_t>(hidden));
    seed = numerics::hash_combine(seed, static_cast<std::uint64_t>(inter));
    seed = numerics::hash_combine(seed, static_cast<std::uint64_t>(expert_idx));
    return numerics::hash_combine(seed, static_cast<std::uint64_t>(matrix));
}

// The matrix of a routed expert (use kRoutedWeight) or of the shared one (kSharedWeight, with inter
// = shared_inter and expert_idx = 0).
GCMOE_HD constexpr GeneratedMatrix generated_matrix(SeedUse use, int hidden, int inter,
                                                    int expert_idx, ExpertMatrix matrix) {
    const bool is_down = matrix == ExpertMatrix::kDown;
    GeneratedMatrix out;
    out.seed = generated_seed(use, hidden, inter, expert_idx, matrix);
    out.rows = is_down ? hidden : inter;
    out.cols = is_down ? inter : hidden;
    return out;
}

// The weight before it is quantised.
GCMOE_HD constexpr float generated_weight(const GeneratedMatrix& matrix, int row, int col) {
    const std::int64_t element_idx = std::int64_t{row} * matrix.cols + col;
    return numerics::hash_normal(matrix.seed + static_cast<std::uint64_t>(element_idx)) *
           kGeneratedWeightDeviation;
}

// A bias: a float that is exactly a BF16 number. seed of use kBias.
GCMOE_HD constexpr float generated_bias(std::uint64_t seed, int row) {
    const float value = numerics::hash_normal(seed + static_cast<std::uint64_t>(row));
    return numerics::bf16_to_float(numerics::bf16_from_float(value * kGeneratedBiasDeviation));
}

// Rule kSpan. Every row's K128 has a base from a hash and reaches base and base + span_per_k128
// exactly (where it has two groups or more); its other groups lie between. Bases are spread so that
// the codes of a matrix fill span_per_expert octaves around kSpanCentreCode; rows 0 and 1 reach the
// lowest and the highest.
GCMOE_HD constexpr std::uint8_t span_scale_code(const ScaleRule& rule,
                                                const GeneratedMatrix& matrix, int row,
                                                int group_idx) {
    const int num_groups = matrix.cols / numerics::kMxfp4Group;
    const int chunk_idx = group_idx / kGroupsPerK128;
    const int num_chunks = (num_groups + kGroupsPerK128 - 1) / kGroupsPerK128;
    const int rest = num_groups - chunk_idx * kGroupsPerK128;
    const unsigned num_in_chunk = static_cast<unsigned>(rest < kGroupsPerK128 ? rest : 4);
    const std::uint64_t place =
        static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(num_chunks) +
        static_cast<std::uint64_t>(chunk_idx);
    const std::uint64_t seed =
        numerics::hash_combine(matrix.seed, static_cast<std::uint64_t>(SeedUse::kScaleCode));
    const std::uint64_t word = numerics::splitmix64(seed + place);

    const int free_octaves = rule.span_per_expert - rule.span_per_k128;
    int base = kSpanCentreCode - rule.span_per_expert / 2;
    if (row == 1 && chunk_idx == 0) {
        base += free_octaves;
    } else if (row != 0 || chunk_idx != 0) {
        base += static_cast<int>((word & 0xFFFFU) % static_cast<unsigned>(free_octaves + 1));
    }
    const unsigned group_in_chunk = static_cast<unsigned>(group_idx % kGroupsPerK128);
    const unsigned lowest = static_cast<unsigned>(word >> 16 & 0xFFU) % num_in_chunk;
    if (group_in_chunk == lowest) return static_cast<std::uint8_t>(base);
    const unsigned step = 1 + static_cast<unsigned>(word >> 24 & 0xFFU) % (num_in_chunk - 1);
    if (group_in_chunk == (lowest + step) % num_in_chunk) {
        return static_cast<std::uint8_t>(base + rule.span_per_k128);
    }
    const unsigned offset = static_cast<unsigned>(word >> (32 + 8 * group_in_chunk) & 0xFFU) %
                            static_cast<unsigned>(rule.span_per_k128 + 1);
    return static_cast<std::uint8_t>(base + static_cast<int>(offset));
}

// The scale code of one group; normal_code is what quantising its weights gave.
GCMOE_HD constexpr std::uint8_t generated_scale_code(const ScaleRule& rule,
                                                     const GeneratedMatrix& matrix, int row,
                                                     int group_idx, std::uint8_t normal_code) {
    switch (rule.kind) {
        case ScaleRule::Kind::kNormal:
            return normal_code;
        case ScaleRule::Kind::kRowsOfCodes:
            return rule.codes[row % rule.num_codes];
        case ScaleRule::Kind::kSpan:
            return span_scale_code(rule, matrix, row, group_idx);
    }
    return normal_code;
}

// One K32 group of a routed matrix in checkpoint bytes: 16 bytes of nibbles and a scale code.
GCMOE_HD constexpr void generate_mxfp4_group(const ScaleRule& rule, const GeneratedMatrix& matrix,
                                             int row, int group_idx, std::uint8_t* nibble_bytes,
                                             std::uint8_t* scale_code) {
    float values[numerics::kMxfp4Group] = {};
    for (int i = 0; i < numerics::kMxfp4Group; ++i) {
        values[i] = generated_weight(matrix, row, group_idx * numerics::kMxfp4Group + i);
    }
    std::uint8_t normal_code = 0;
    numerics::quantise_mxfp4(values, nibble_bytes, &normal_code);
    *scale_code = generated_scale_code(rule, matrix, row, group_idx, normal_code);
}

// What the weights of a shared matrix's block are multiplied by before the cast to E4M3; amax is
// the block's. Its scale is numerics::fp32_scale or ue8m0_scale_code of amax.
GCMOE_HD constexpr float shared_inverse_scale(ScaleGrid grid, float amax) {
    return grid == ScaleGrid::kFp32Block128
               ? numerics::fp32_inverse_scale(amax)
               : numerics::ue8m0_inverse(numerics::ue8m0_scale_code(amax));
}

}  // namespace gcmoe::checkpoint
