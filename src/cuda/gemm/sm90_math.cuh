// The math warpgroups of role 2: 64 weight rows times N tokens over all of K.
//
// Per chunk of 128 of K: weights out of shared memory into registers, decoded to E5M2; four wgmma
// (one chain); the chain's sum times the token's activation scale is added to the FP32
// accumulators by one fma, in K order. While a chain runs the warp decodes the next chunk, as far
// as the registers go. Which N a block has does not change any sum's bits. With UE8M0 activations,
// and with the shared expert's K32 grids, each wgmma is a chain of its own.
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
    std::uint32_t nibbles;  // bytes into a tile: the thread's nibbles of row(0)
    std::uint32_t codes;    // and the code of its K32 block of that row
    std::uint32_t scales;   // bytes into a chunk's scales: of the thread's tokens
    __device__ __forceinline__ static MathThread here() { return at(ptx::thread_idx()); }
    // Of thread `thread` of the CTA.
    __device__ __forceinline__ static MathThread at(std::uint32_t thread) {
        MathThread me{thread / 128, thread / 32 % 4, thread % 32 / 4, thread % 4, 0, 0, 0};
        me.nibbles = me.row(0) * 64 + me.q * 16;
        me.codes = layout::kFp4NibbleBytes + me.row(0) * 4 + me.q;
        me.scales = 8 * me.q;
        // The compiler would work them out anew in every stage.
        ptx::keep_alive(me.nibbles);
        ptx::keep_alive(me.codes);
        ptx::keep_alive(me.scales);
        return me;
    }
    // Row in the tile of half h (0: row g of the slab, 1: row g + 8).
    [[nodiscard]] __device__ __forceinline__ std::uint32_t row(std::uint32_t half) const {
        return 16 * warp + 8 * half + g;
    }
};

// A math warp's places in the CTA's rings; kept over tasks.
template <std::uint32_t kMaxRows>
struct MathCursors {
    StageCursor<SharedStorage<kMaxRows>::kTokenStages, sizeof(TokenStage<kMaxRows>)> tokens;
    StageCursor<kWeightStages, kWarpgroups * sizeof(WeightStage<kMaxRows>)> weights;
    RingCursor<kTaskSlots> slots;
    // At the beginning of the rings, for a warp of warpgroup `warpgroup`.
    __device__ __forceinline__ static MathCursors over(SharedStorage<kMaxRows>* shared,
                                                       std::uint32_t warpgroup) {
        MathCursors cursors;
        cursors.tokens.at = ptx::shared_address(shared->tokens);
        cursors.weights.at = ptx::shared_address(&shared->weights[0][warpgroup]);
        return cursors;
    }
};

// UE8M0 code to its float; code 0 is 2^-127, a subnormal.
__device__ __forceinline__ float ue8m0_value(std::uint32_t code) {
    return code == 0 ? numerics::bits_to_float(0x00400000U) : numerics::bits_to_float(code << 23);
}

// A operands of one K128 chunk of this thread's two rows: [step][4].
struct ChunkOperands {
    std::uint32_t a[4][4];
};

// One lane's part of an FP4 tile: 16 bytes of each of its two rows, and their window positions.
struct TileWords {
    ptx::Words4 half[2];
    std::uint32_t codes[2];  // natural order: one byte a step; quad-block order: the lane's own
};

// `tile`: address in shared memory.
template <bool kNatural>
__device__ __forceinline__ TileWords read_tile(std::uint32_t tile, const MathThread& me) {
    const std::uint32_t nibbles = tile + me.nibbles;
    const std::uint32_t codes = tile + (kNatural ? me.codes - me.q : me.codes);
    TileWords words;
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
        words.half[half] = ptx::load_shared_16(nibbles + half * 8 * 64);
        const std::uint32_t at = codes + half * 8 * 4;
        words.codes[half] = kNatural ? ptx::load_shared_word(at) : ptx::load_shared_byte(at);
    }
    return words;
}

// Natural order: a step is one K32 block with its own code; quad-block: the lane's block has one.
template <bool kNatural>
__device__ __forceinline__ void decode_tile(const TileWords& words, ChunkOperands* operands) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
        MagnitudeTable table = magnitude_table(words.codes[half]);
#pragma unroll
        for (std::uint32_t step = 0; step < 4; ++step) {
            if constexpr (kNatural) {
                table = magnitude_table(words.codes[half] >> (8 * step) & 0xFF);
            }
            std::uint32_t pair[2];
            decode_word(words.half[half].w[step], table, pair);
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

// Issues a chain of kSteps wgmma from step `first`; part = their sum, after wgmma_wait. The
// operands must not be written before that.
template <std::uint32_t kN, bool kFp8, std::uint32_t kSteps>
__device__ __forceinline__ void issue(const ChunkOperands& operands, std::uint32_t first,
                                      std::uint32_t descriptor, float* part) {
    ptx::wgmma_fence();
#pragma unroll
    for (std::uint32_t i = 0; i < kSteps; ++i) {
        const std::uint32_t step = first + i;
        const std::uint64_t b = ptx::wgmma_descriptor(descriptor + 2 * step);
        if constexpr (kFp8) {
            ptx::wgmma_e4m3<kN>(part, operands.a[step], b, i);
        } else {
            ptx::wgmma_e5m2<kN>(part, operands.a[step], b, i);
        }
    }
    ptx::wgmma_commit();
}

// sum += part * activation scale of the token; scales: address of (kN) FP32 in shared memory.
template <std::uint32_t kN>
__device__ __forceinline__ void promote(const float* part, std::uint32_t scales,
                                        const MathThread& me, float* sum) {
    scales += me.scales;
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
        const ptx::Floats2 scale = ptx::load_shared_floats(scales + 32 * t);
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) {
            sum[4 * t + i] = ptx::fma(part[4 * t + i], scale.f[i % 2], sum[4 * t + i]);
        }
    }
}

// Tokens of the first and of the second chain.
template <std::uint32_t kN>
inline constexpr std::uint32_t kFirstTokens = kN < 32 ? kN : 32;
template <std::uint32_t kN>
inline constexpr std::uint32_t kSecondTokens = kN - kFirstTokens<kN>;

// Descriptor of the pair's chunk `in_pair`.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint32_t at_chunk(std::uint32_t descriptor, std::uint32_t in_pair) {
    return descriptor + in_pair * kMaxRows * 128 / 16;
}
// Descriptor of the token at `token` (a multiple of 8) of a chunk.
__device__ __forceinline__ std::uint32_t at_token(std::uint32_t descriptor, std::uint32_t token) {
    return descriptor + token * 128 / 16;
}

// One chunk: one chain over all tokens, `between` while it runs, promotion.
template <std::uint32_t kN, class Between>
__device__ __forceinline__ void add_chunk(ChunkOperands* operands, std::uint32_t descriptor,
                                          std::uint32_t scales, const MathThread& me, float* sum,
                                          const Between& between) {
    float part[kN / 2];
    issue<kN, false, 4>(*operands, 0, descriptor, part);
    between();
    ptx::wgmma_wait<0>();
    keep_operands(operands);
    promote<kN>(part, scales, me, sum);
}

// The rings as one math warp sees them.
template <std::uint32_t kMaxRows>
struct MathRings {
    SharedStorage<kMaxRows>* shared;
    MathThread me;
    MathCursors<kMaxRows>* cursors;

    using Storage = SharedStorage<kMaxRows>;
    using Tokens = TokenStage<kMaxRows>;
    using Weights = WeightStage<kMaxRows>;

    [[nodiscard]] __device__ __forceinline__ std::uint32_t abort_word() const {
        return ptx::shared_address(&shared->abort);
    }
    __device__ __forceinline__ void wait_tokens() const {
        wait_phase_at(cursors->tokens.at + static_cast<std::uint32_t>(offsetof(Tokens, full)),
                      cursors->tokens.phase, abort_word());
    }
    // Reads end before the arrival; the copy engine refills after it. No proxy fence is needed for
    // that order: the arrival releases the reads to the copying thread.
    __device__ __forceinline__ void release_tokens() const {
        ptx::warp_barrier();
        if (ptx::thread_idx() % 32 == 0) {
            ptx::mbarrier_arrive(cursors->tokens.at +
                                 static_cast<std::uint32_t>(offsetof(Tokens, empty)));
        }
        cursors->tokens.advance(ptx::shared_address(&shared->tokens[Storage::kTokenStages]));
    }
    __device__ __forceinline__ void wait_weights() const {
        wait_phase_at(cursors->weights.at + static_cast<std::uint32_t>(offsetof(Weights, full)),
                      cursors->weights.phase, abort_word());
    }
    __device__ __forceinline__ void release_weights() const {
        ptx::warp_barrier();
        if (ptx::thread_idx() % 32 == 0) {
            ptx::mbarrier_arrive(cursors->weights.at +
                                 static_cast<std::uint32_t>(offsetof(Weights, empty)));
        }
        cursors->weights.advance(ptx::shared_address(&shared->weights[kWeightStages]));
    }
    [[nodiscard]] __device__ __forceinline__ std::uint32_t tile(std::uint32_t in_pair) const {
        return cursors->weights.at + in_pair * layout::kFp4TileBytes;
    }
    [[nodiscard]] __device__ __forceinline__ std::uint32_t tokens() const {
        const std::uint32_t low = ptx::wgmma_descriptor_low(cursors->tokens.at);
        return ptx::shuffle(low, 0);  // tells the compiler that it is the warp's, not the lane's
    }
    [[nodiscard]] __device__ __forceinline__ std::uint32_t scales(std::uint32_t in_pair) const {
        return cursors->tokens.at + static_cast<std::uint32_t>(offsetof(Tokens, scales)) +
               in_pair * kMaxRows * 4;
    }
};

// Most tokens for which a chunk is decoded while the last one's chain runs.
inline constexpr std::uint32_t kAheadTokens = 48;

// FP4 with row factors, FP32 activation scales: all of K for one task. sum (kN / 2): rows g and
// g + 8 of this thread's slab, see ptx/wgmma.cuh. At most kAheadTokens.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_main_loop(const MathRings<kMaxRows>& rings,
                                              std::uint32_t chunks, float* sum) {
    const MathThread& me = rings.me;
    ChunkOperands even_operands;
    ChunkOperands odd_operands;
    rings.wait_weights();
    decode_tile<false>(read_tile<false>(rings.tile(0), me), &even_operands);
    std::uint32_t left = chunks;
    for (; left >= kPair; left -= kPair) {
        const std::uint32_t tokens = rings.tokens();
        rings.wait_tokens();
        add_chunk<kN>(&even_operands, tokens, rings.scales(0), me, sum, [&] {
            decode_tile<false>(read_tile<false>(rings.tile(1), me), &odd_operands);
            rings.release_weights();
        });
        const std::uint32_t odd_tokens = at_chunk<kMaxRows>(tokens, 1);
        add_chunk<kN>(&odd_operands, odd_tokens, rings.scales(1), me, sum, [&] {
            if (left > kPair) {
                rings.wait_weights();
                decode_tile<false>(read_tile<false>(rings.tile(0), me), &even_operands);
            }
        });
        rings.release_tokens();
    }
    if (left != 0) {
        const std::uint32_t tokens = rings.tokens();
        rings.wait_tokens();
        add_chunk<kN>(&even_operands, tokens, rings.scales(0), me, sum, [] {});
        rings.release_weights();
        rings.release_tokens();
    }
}

// One chunk of more than kAheadTokens: one chain, or two of 32 for 64 tokens: the tensor core takes
// as long, and the partial sums need half the registers. `between` while the first one runs.
template <std::uint32_t kN, class Between>
__device__ __forceinline__ void add_wide_chunk(ChunkOperands* operands, std::uint32_t descriptor,
                                               std::uint32_t scales, const MathThread& me,
                                               float* sum, const Between& between) {
    constexpr std::uint32_t kChain = kN == 64 ? 32 : kN;
    add_chunk<kChain>(operands, descriptor, scales, me, sum, between);
    if constexpr (kN > kChain) {
        add_chunk<kN - kChain>(operands, at_token(descriptor, kChain), scales + 4 * kChain, me,
                               sum + kChain / 2, [] {});
    }
}

// The same for more tokens than kAheadTokens: the registers do not hold two chunks' operands, so a
// chunk's words are read while the last chain runs, but decoded after it.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void run_wide_loop(const MathRings<kMaxRows>& rings,
                                              std::uint32_t chunks, float* sum) {
    const MathThread& me = rings.me;
    ChunkOperands operands;
    rings.wait_weights();
    TileWords words = read_tile<false>(rings.tile(0), me);
    std::uint32_t left = chunks;
    for (; left >= kPair; left -= kPair) {
        const std::uint32_t tokens = rings.tokens();
        decode_tile<false>(words, &operands);
        rings.wait_tokens();
        add_wide_chunk<kN>(&operands, tokens, rings.scales(0), me, sum,
                           [&] { words = read_tile<false>(rings.tile(1), me); });
        decode_tile<false>(words, &operands);
        rings.release_weights();
        add_wide_chunk<kN>(&operands, at_chunk<kMaxRows>(tokens, 1), rings.scales(1), me, sum, [&] {
            if (left > kPair) {
                rings.wait_weights();
                words = read_tile<false>(rings.tile(0), me);
            }
        });
        rings.release_tokens();
    }
    if (left != 0) {
        const std::uint32_t tokens = rings.tokens();
        decode_tile<false>(words, &operands);
        rings.wait_tokens();
        add_wide_chunk<kN>(&operands, tokens, rings.scales(0), me, sum, [] {});
        rings.release_weights();
        rings.release_tokens();
    }
}

// A warpgroup without a tile only lets the token stages go by.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void skip_tokens(const MathRings<kMaxRows>& rings,
                                            std::uint32_t chunks) {
    for (std::uint32_t chunk = 0; chunk < chunks; chunk += kPair) {
        rings.wait_tokens();
        rings.release_tokens();
    }
}

}  // namespace gcmoe::cuda::gemm
