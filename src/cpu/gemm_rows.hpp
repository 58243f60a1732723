// The arithmetic of role 2 on the CPU: rows of packed weights times rows of FP8 activations, in
// FP32, with the widest SIMD that the machine has.
//
// Bits depend on nothing but the operands of one output element. A sum has 16 virtual lanes,
// whatever the width of the machine's vectors is: lane l is word l = 4 q + j of a packed row, the
// eight weights of quad lane q and step j (layout/weight_tile.hpp). For every chunk c of 128, in
// order:
//
//     part[l]  = w[0] x[0] + w[1] x[1] + .. + w[7] x[7]       from the left, weight n = 4 s + i
//     sum[l]  += (part[l] * weight scale[l]) * activation scale[l]      (* chunk factor, if any)
//
// and at the end the lanes 8, 4, 2, 1 apart are added, times the row's factor, if any. A product of
// two such codes is exact in FP32, so that a fused multiply-add gives the same bits as two
// instructions; all other operations round one by one. reference/lane_sums.hpp is the definition
// in scalar code.
#pragma once

#include <cstdint>

#include "cpu/cpu_launch.hpp"

namespace gcmoe::cpu {

inline constexpr int kLanes = 16;          // words of a packed row's chunk
inline constexpr int kLaneK = 8;           // weights of a word
inline constexpr int kMaxGemmRows = 64;    // activation rows of one call: the largest row block
inline constexpr int kScalesPerChunk = 4;  // activation scales as stored: one per K32

// Decoded activation rows of one task. A value is values * scale of its K32 group.
struct ActivationRows {
    const float* values = nullptr;  // (chunks, num_rows, 8, 16) the codes as floats, by n and lane
    const float* scales = nullptr;  // (chunks, num_rows, 4) by K32 group
    int num_rows = 0;               // 1..kMaxGemmRows
    int chunks = 0;
};

// sums[t][row] of all activation rows t and packed rows first_row + [0, num_rows) of a routed
// matrix. num_rows is a multiple of 64. No bias. A NaN is always 0x7FC00000.
void multiply_fp4(const layout::PackedMatrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums);

// The same for the shared expert's FP8 weights.
void multiply_fp8(const layout::PackedFp8Matrix& matrix, int first_row, int num_rows,
                  const ActivationRows& rows, float* sums);

// The words of 128 activation codes as the matrix instruction would read them: (2, 16), the four
// codes of half s and lane l.
struct CodeWords {
    alignas(64) std::uint32_t words[2 * kLanes];
};

// Row `row` of a swizzled ring chunk; 128 codes that lie in natural K order (the shared expert's).
void load_code_words(const std::uint8_t* chunk, int row, CodeWords* out);
void load_code_words(const std::uint8_t* codes, CodeWords* out);

// To floats: values (8, 16).
void decode_codes(const CodeWords& codes, float* values);

// Four scales of one scale word: a float for all, or four UE8M0 codes (group 0 in the low byte).
void decode_scale_word(std::uint32_t word, ActivationScale format, float* scales);

}  // namespace gcmoe::cpu
