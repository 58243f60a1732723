// The math warpgroups of role 2: 64 weight rows times N tokens over all of K.
//
// Per chunk of 128 of K: weights out of shared memory into registers, decoded to E5M2; four wgmma
// (one chain); the chain's sum times the token's activation scale is added to the FP32
// accumulators, in K order. With UE8M0 activations, and with the shared expert's K32 grids, each
// wgmma is a chain of its own.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_fp4_decode.cuh"
#include "cuda/gemm/sm90_frame.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "numerics/bits.hpp"

namespace gcmoe::cuda::gemm {

// Where a math thread stands: warpgroup, warp w of it, lane = 4 g + q.
struct MathThread {
    std::uint32_t warpgroup;
    std::uint32_t warp;
    std::uint32_t g;
    std::uint32_t q;
    __device__ __forceinline__ static MathThread here() {
        const std::uint32_t thread = ptx::thread_idx();
        return {thread / 128, thread / 32 % 4, thread % 32 / 4, thread % 4};
    }
    // Row in the tile of half h (0: row g of the slab, 1: row g + 8).
    [[nodiscard]] __device__ __forceinline__ std::uint32_t row(std::uint32_t half) const {
        return 16 * warp + 8 * half + g;
    }
};

// A math warp's places in the CTA's rings; kept over tasks.
struct MathCursors {
    RingCursor<kTokenStages> tokens;
    RingCursor<kWeightStages> weights;
    RingCursor<kTaskSlots> slots;
};

// UE8M0 code to its float; code 0 is 2^-127, a subnormal.
__device__ __forceinline__ float ue8m0_value(std::uint32_t code) {
    return code == 0 ? numerics::bits_to_float(0x00400000U) : numerics::bits_to_float(code << 23);
}

// A operands of one K128 chunk of this thread's two rows: [step][4].
struct ChunkOperands {
    std::uint32_t a[4][4];
};

// FP4: a tile in shared memory, codes v of the window beside it. Quad-block order: the lane's K32
// block has one code; natural order: a step is one K32 block, each with its own code.
template <bool kNatural>
__device__ __forceinline__ void decode_tile(const std::uint8_t* tile, const MathThread& me,
                                            ChunkOperands* operands) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
        const std::uint32_t row = me.row(half);
        const ptx::Words4 words = ptx::load_shared_16(tile + row * 64 + me.q * 16);
        std::uint32_t codes = 0;
        MagnitudeTable table{};
        if constexpr (kNatural) {
            codes =
                *reinterpret_cast<const std::uint32_t*>(tile + layout::kFp4NibbleBytes + row * 4);
        } else {
            table = magnitude_table(tile[layout::kFp4NibbleBytes + row * 4 + me.q]);
        }
#pragma unroll
        for (std::uint32_t step = 0; step < 4; ++step) {
            if constexpr (kNatural) table = magnitude_table(codes >> (8 * step) & 0xFF);
            std::uint32_t pair[2];
            decode_word(words.w[step], table, pair);
            operands->a[step][half] = pair[0];
            operands->a[step][2 + half] = pair[1];
        }
    }
}

// FP8: the tile in device memory, natural order; 32 bytes a row and lane.
__device__ __forceinline__ void load_fp8_tile(const std::uint8_t* tile, const MathThread& me,
                                              ChunkOperands* operands) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
        const auto* from =
            reinterpret_cast<const ptx::Words4*>(tile + me.row(half) * 128 + me.q * 32);
#pragma unroll
        for (std::uint32_t part = 0; part < 2; ++part) {
            const ptx::Words4 words = from[part];
            operands->a[2 * part][half] = words.w[0];
            operands->a[2 * part][2 + half] = words.w[1];
            operands->a[2 * part + 1][half] = words.w[2];
            operands->a[2 * part + 1][2 + half] = words.w[3];
        }
    }
}

__device__ __forceinline__ void keep_operands(ChunkOperands* operands) {
#pragma unroll
    for (std::uint32_t step = 0; step < 4; ++step) {
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) ptx::keep_alive(operands->a[step][i]);
    }
}

// Chain of kSteps wgmma from step `first`; part = their sum.
template <std::uint32_t kN, bool kFp8, std::uint32_t kSteps>
__device__ __forceinline__ void multiply(ChunkOperands* operands, std::uint32_t first,
                                         std::uint64_t descriptor, float* part) {
    ptx::wgmma_fence();
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
        const std::uint32_t step = first + i;
        if constexpr (kFp8) {
            ptx::wgmma_e4m3<kN>(part, operands->a[step], descriptor + 2 * step, i);
        } else {
            ptx::wgmma_e5m2<kN>(part, operands->a[step], descriptor + 2 * step, i);
        }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    keep_operands(operands);
}

// sum += part * activation scale of the token.
template <std::uint32_t kN, class ScaleOf>
__device__ __forceinline__ void promote(const float* part, const ScaleOf& scale_of,
                                        const MathThread& me, float* sum) {
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
        const float even = scale_of(8 * t + 2 * me.q);
        const float odd = scale_of(8 * t + 2 * me.q + 1);
        sum[4 * t] += part[4 * t] * even;
        sum[4 * t + 1] += part[4 * t + 1] * odd;
        sum[4 * t + 2] += part[4 * t + 2] * even;
        sum[4 * t + 3] += part[4 * t + 3] * odd;
    }
}

// The same with a factor of the row on top (rows g and g + 8).
template <std::uint32_t kN, class ScaleOf>
__device__ __forceinline__ void promote_rows(const float* part, const ScaleOf& scale_of,
                                             const MathThread& me, const float* row_factor,
                                             float* sum) {
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
        const float even = scale_of(8 * t + 2 * me.q);
        const float odd = scale_of(8 * t + 2 * me.q + 1);
        sum[4 * t] += part[4 * t] * even * row_factor[0];
        sum[4 * t + 1] += part[4 * t + 1] * odd * row_factor[0];
        sum[4 * t + 2] += part[4 * t + 2] * even * row_factor[1];
        sum[4 * t + 3] += part[4 * t + 3] * odd * row_factor[1];
    }
}

// What the loop needs to know of a task's weights.
struct TaskWeights {
    const float* chunk_factors;  // FP4: of this tile (chunks, 64), or null
    const std::uint8_t* fp8;     // FP8: first tile of this row tile, or null for FP4
    const float* fp8_scales;     // (chunks, 64, fp8_groups) of this row tile
    std::uint32_t fp8_groups;
};

// Factors that a chunk's rows are promoted with: FP4 chunk factors, or FP8 scales per K128.
__device__ __forceinline__ void load_chunk_factors(const TaskWeights& weights, std::uint32_t chunk,
                                                   std::uint32_t step, const MathThread& me,
                                                   float* factor) {
    const bool fp8 = weights.fp8 != nullptr;
    const std::uint32_t groups = fp8 ? weights.fp8_groups : 1;
    const float* from = fp8 ? weights.fp8_scales : weights.chunk_factors;
    const std::uint32_t group = groups == 4 ? step : 0;
    factor[0] = from[(chunk * 64 + me.row(0)) * groups + group];
    factor[1] = from[(chunk * 64 + me.row(1)) * groups + group];
}

// One chunk whose sums are promoted once (FP32 activation scales, K128 weight scales).
template <std::uint32_t kN, bool kFp8>
__device__ __forceinline__ void add_chunk(ChunkOperands* operands, std::uint64_t descriptor,
                                          const std::uint32_t* token_scales, const MathThread& me,
                                          const TaskWeights& weights, std::uint32_t chunk,
                                          float* sum) {
    float part[kN / 2];
    multiply<kN, kFp8, 4>(operands, 0, descriptor, part);
    const auto scale_of = [token_scales](std::uint32_t token) {
        return numerics::bits_to_float(token_scales[token]);
    };
    if (!kFp8 && weights.chunk_factors == nullptr) {
        promote<kN>(part, scale_of, me, sum);
        return;
    }
    float factor[2];
    load_chunk_factors(weights, chunk, 0, me, factor);
    promote_rows<kN>(part, scale_of, me, factor, sum);
}

// One chunk that is promoted after each K32 step.
template <std::uint32_t kN, bool kFp8, bool kK32>
__device__ __forceinline__ void add_chunk_by_steps(ChunkOperands* operands,
                                                   std::uint64_t descriptor,
                                                   const std::uint32_t* token_scales,
                                                   const MathThread& me, const TaskWeights& weights,
                                                   std::uint32_t chunk, float* sum) {
#pragma unroll
    for (std::uint32_t step = 0; step < 4; ++step) {
        float part[kN / 2];
        multiply<kN, kFp8, 1>(operands, step, descriptor, part);
        const auto scale_of = [token_scales, step](std::uint32_t token) {
            const std::uint32_t word = token_scales[token];
            return kK32 ? ue8m0_value(word >> (8 * step) & 0xFF) : numerics::bits_to_float(word);
        };
        if (!kFp8 && weights.chunk_factors == nullptr) {
            promote<kN>(part, scale_of, me, sum);
            continue;
        }
        float factor[2];
        load_chunk_factors(weights, chunk, step, me, factor);
        promote_rows<kN>(part, scale_of, me, factor, sum);
    }
}

// All of K for one task. sum (kN / 2): rows g and g + 8 of this thread's slab, see ptx/wgmma.cuh.
// `active`: this warpgroup has a tile; otherwise it only lets the token stages go by.
template <std::uint32_t kN, bool kFp8, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_main_loop(SharedStorage<kMaxRows>* shared, const MathThread& me,
                                              const TaskWeights& weights, std::uint32_t chunks,
                                              bool active, MathCursors* cursors, float* sum) {
    const bool elected = ptx::thread_idx() % 32 == 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 2; ++i) sum[i] = 0.0F;
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        const std::uint32_t token_stage = cursors->tokens.stage;
        ChunkOperands operands;
        if (active && kFp8) {
            load_fp8_tile(weights.fp8 + std::uint64_t{chunk} * layout::kFp8TileBytes, me,
                          &operands);
        }
        if (active && !kFp8) {
            const std::uint32_t stage = cursors->weights.stage;
            wait_phase(&shared->weight_full[me.warpgroup][stage], cursors->weights.phase,
                       &shared->abort);
            decode_tile<kK32>(shared->weights[me.warpgroup][stage], me, &operands);
            ptx::fence_async_proxy_shared();  // the copy engine refills what was read here
            ptx::warp_barrier();
            if (elected) ptx::mbarrier_arrive(&shared->weight_empty[me.warpgroup][stage]);
            cursors->weights.advance();
        }
        wait_phase(&shared->token_full[token_stage], cursors->tokens.phase, &shared->abort);
        if (active) {
            const std::uint64_t descriptor =
                ptx::wgmma_descriptor(ptx::shared_address(shared->tokens[token_stage]));
            const std::uint32_t* scales = shared->token_scales[token_stage];
            if (kK32 || (kFp8 && weights.fp8_groups == 4)) {
                add_chunk_by_steps<kN, kFp8, kK32>(&operands, descriptor, scales, me, weights,
                                                   chunk, sum);
            } else {
                add_chunk<kN, kFp8>(&operands, descriptor, scales, me, weights, chunk, sum);
            }
        }
        ptx::fence_async_proxy_shared();
        ptx::warp_barrier();
        if (elected) ptx::mbarrier_arrive(&shared->token_empty[token_stage]);
        cursors->tokens.advance();
    }
}

}  // namespace gcmoe::cuda::gemm
