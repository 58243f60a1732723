// The other weight and activation forms of role 2: FP4 with a factor per row and chunk, UE8M0
// activations (a scale per K32), and the shared expert's FP8 tiles, which are read straight from
// device memory. One chunk after the other, nothing overlapped inside a warp.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_math.cuh"

namespace gcmoe::cuda::gemm {

// What the loop needs to know of a task's weights.
struct TaskWeights {
    const float* chunk_factors;  // FP4: of this tile (chunks, 64), or null
    const std::uint8_t* fp8;     // FP8: first tile of this row tile, or null for FP4
    const float* fp8_scales;     // (chunks, 64, fp8_groups) of this row tile
    std::uint32_t fp8_groups;
};

__device__ __forceinline__ TaskWeights task_weights(const GpuLaunch& gpu, const GpuTask& task,
                                                    const MathThread& me) {
    TaskWeights weights{nullptr, nullptr, nullptr, 1};
    const std::uint64_t tile = std::uint64_t{row_tile_of(task, me.warpgroup)} * task.chunks;
    if (is_shared(task.kind)) {
        const GpuFp8Matrix& matrix = is_first(task.kind) ? gpu.shared_first : gpu.shared_second;
        weights.fp8 = matrix.tiles + tile * layout::kFp8TileBytes;
        weights.fp8_scales = matrix.scales + tile * 64 * matrix.groups;
        weights.fp8_groups = matrix.groups;
    } else if (task.matrix.chunk_factors != nullptr) {
        weights.chunk_factors = task.matrix.chunk_factors + tile * 64;
    }
    return weights;
}

// Factors that a chunk's rows are promoted with: FP4 chunk factors, or FP8 scales; 1 without.
__device__ __forceinline__ void load_chunk_factors(const TaskWeights& weights, std::uint32_t chunk,
                                                   std::uint32_t step, const MathThread& me,
                                                   float* factor) {
    const bool fp8 = weights.fp8 != nullptr;
    const std::uint32_t groups = fp8 ? weights.fp8_groups : 1;
    const float* from = fp8 ? weights.fp8_scales : weights.chunk_factors;
    const std::uint32_t group = groups == 4 ? step : 0;
    factor[0] = factor[1] = 1.0F;
    if (from == nullptr) return;
    factor[0] = from[(chunk * 64 + me.row(0)) * groups + group];
    factor[1] = from[(chunk * 64 + me.row(1)) * groups + group];
}

// sum += (part * activation scale) * factor of the row.
template <std::uint32_t kN, bool kK32>
__device__ __forceinline__ void promote_rows(const float* part, std::uint32_t scales,
                                             std::uint32_t step, const MathThread& me,
                                             const float* factor, float* sum) {
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) {
            const std::uint32_t word =
                ptx::load_shared_word(scales + 4 * (8 * t + 2 * me.q + i % 2));
            const float scale =
                kK32 ? ue8m0_value(word >> (8 * step) & 0xFF) : numerics::bits_to_float(word);
            sum[4 * t + i] = ptx::fma(part[4 * t + i] * scale, factor[i / 2], sum[4 * t + i]);
        }
    }
}

// Tokens of a chunk in shared memory: their codes' descriptor, and their scales.
struct ChunkTokens {
    std::uint32_t descriptor;
    std::uint32_t scales;  // address in shared memory
    // Those from `token` (a multiple of 8) on.
    [[nodiscard]] __device__ __forceinline__ ChunkTokens from(std::uint32_t token) const {
        return {at_token(descriptor, token), scales + 4 * token};
    }
};

// kN tokens of one chunk, kSteps of K32 in a chain.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kSteps>
__device__ __forceinline__ void add_steps(ChunkOperands* operands, const ChunkTokens& tokens,
                                          const MathThread& me, const TaskWeights& weights,
                                          std::uint32_t chunk, float* sum) {
#pragma unroll
    for (std::uint32_t step = 0; step < 4; step += kSteps) {
        float part[kN / 2];
        issue<kN, kFp8, kSteps>(*operands, step, tokens.descriptor, part);
        float factor[2];
        load_chunk_factors(weights, chunk, step, me, factor);
        ptx::wgmma_wait<0>();
        keep_operands(operands);
        promote_rows<kN, kK32>(part, tokens.scales, step, me, factor, sum);
    }
}

// One chunk of one pair: its tokens are in the stage already.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void add_chunk_by_steps(const MathRings<kMaxRows>& rings,
                                                   const TaskWeights& weights, std::uint32_t chunk,
                                                   ChunkOperands* operands, float* sum) {
    const std::uint32_t in_pair = chunk % kPair;
    const ChunkTokens tokens{at_chunk<kMaxRows>(rings.tokens(), in_pair), rings.scales(in_pair)};
    const MathThread& me = rings.me;
    const bool by_steps = kK32 || (kFp8 && weights.fp8_groups == 4);
    constexpr std::uint32_t kHead = kFirstTokens<kN>;
    constexpr std::uint32_t kTail = kSecondTokens<kN>;
    if (by_steps) {
        add_steps<kHead, kFp8, kK32, 1>(operands, tokens, me, weights, chunk, sum);
        if constexpr (kTail != 0) {
            add_steps<kTail, kFp8, kK32, 1>(operands, tokens.from(32), me, weights, chunk,
                                            sum + 16);
        }
        return;
    }
    if constexpr (!kK32) {
        add_steps<kHead, kFp8, false, 4>(operands, tokens, me, weights, chunk, sum);
        if constexpr (kTail != 0) {
            add_steps<kTail, kFp8, false, 4>(operands, tokens.from(32), me, weights, chunk,
                                             sum + 16);
        }
    }
}

// All of K for one task, as run_main_loop.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_step_loop(const MathRings<kMaxRows>& rings,
                                              const TaskWeights& weights, std::uint32_t chunks,
                                              float* sum) {
    const MathThread& me = rings.me;
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        const bool ends_pair = chunk % kPair == kPair - 1 || chunk + 1 == chunks;
        ChunkOperands operands;
        if constexpr (kFp8) {
            load_fp8_tile(weights.fp8 + std::uint64_t{chunk} * layout::kFp8TileBytes, me,
                          &operands);
        } else {
            if (chunk % kPair == 0) rings.wait_weights();
            decode_tile<kK32>(read_tile<kK32>(rings.tile(chunk % kPair), me), &operands);
            if (ends_pair) rings.release_weights();
        }
        if (chunk % kPair == 0) rings.wait_tokens();
        add_chunk_by_steps<kN, kFp8, kK32>(rings, weights, chunk, &operands, sum);
        if (ends_pair) rings.release_tokens();
    }
}

}  // namespace gcmoe::cuda::gemm
