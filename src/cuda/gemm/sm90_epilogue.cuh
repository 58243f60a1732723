// Epilogues of role 2: SwiGLU with requantisation, and results to the owners of the tokens.
//
// All 512 math threads take part. Column of a thread in a first-GEMM task: 32 * warpgroup + 8 *
// warp + g, gate and up in the same thread; tokens 8 t + 2 q and + 1 of each N tile t.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_math.cuh"
#include "numerics/bf16.hpp"
#include "numerics/quantise.hpp"
#include "numerics/swiglu.hpp"
#include "protocol/done.hpp"
#include "protocol/ring.hpp"
#include "protocol/shared_ready.hpp"

namespace gcmoe::cuda::gemm {

__device__ __forceinline__ void math_barrier() { ptx::named_barrier(kMathBarrier, kMathThreads); }

// A task as the epilogue sees it.
template <std::uint32_t kMaxRows>
struct EpilogueTask {
    const GpuLaunch& gpu;
    const Launch& launch;
    SharedStorage<kMaxRows>* shared;
    GpuTask task;
    std::uint32_t slot;  // task slot, for its origins
    MathThread me;

    [[nodiscard]] __device__ __forceinline__ const layout::Origin& origin(std::uint32_t row) const {
        return shared->origins[slot][row];
    }
    // Signals are left alone once the CTA has given up.
    [[nodiscard]] __device__ __forceinline__ bool may_signal() const {
        return ptx::thread_idx() == 0 && !aborted(&shared->abort);
    }
    [[nodiscard]] __device__ __forceinline__ protocol::Block block() const {
        return protocol::block_at(gpu.memory, launch, task.block);
    }
    // Index of this thread's rows in the packed matrix.
    [[nodiscard]] __device__ __forceinline__ std::uint32_t packed_row(std::uint32_t half) const {
        return row_tile_of(task, me.warpgroup) * 64 + me.row(half);
    }
};

// Factor and bias of this thread's two rows; FP8 weights carry theirs already.
__device__ __forceinline__ void load_row_terms(const GpuMatrix* matrix, std::uint32_t row0,
                                               std::uint32_t row1, float* factor, float* bias) {
    factor[0] = factor[1] = 1.0F;
    bias[0] = bias[1] = 0.0F;
    if (matrix == nullptr) return;
    if (matrix->row_factors != nullptr) {
        factor[0] = matrix->row_factors[row0];
        factor[1] = matrix->row_factors[row1];
    }
    if (matrix->bias != nullptr) {
        bias[0] = matrix->bias[row0];
        bias[1] = matrix->bias[row1];
    }
}

// sum (kN / 2) -> h (kN / 4): activated, weighted columns of this thread, and their maxima over the
// warp's 8 columns into shared->amax.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void activate(const EpilogueTask<kMaxRows>& at, const GpuMatrix* matrix,
                                         const float* sum, float* h) {
    float factor[2];
    float bias[2];
    load_row_terms(matrix, at.packed_row(0), at.packed_row(1), factor, bias);
    const bool routed = matrix != nullptr;
    const bool weigh = routed && at.gpu.weight_placement == WeightPlacement::kBeforeRequantise;
    const std::uint32_t warp = ptx::thread_idx() / 32;
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i) {
            const std::uint32_t token = 8 * t + 2 * at.me.q + i;
            const float gate = sum[4 * t + i] * factor[0] + bias[0];
            const float up = sum[4 * t + 2 + i] * factor[1] + bias[1];
            float value = numerics::swiglu(gate, up, at.gpu.activation);
            if (weigh) value *= at.origin(token).weight;
            h[2 * t + i] = value;
            float amax = numerics::abs(value);
            amax = numerics::max_nan(amax, ptx::shuffle_xor(amax, 4));
            amax = numerics::max_nan(amax, ptx::shuffle_xor(amax, 8));
            amax = numerics::max_nan(amax, ptx::shuffle_xor(amax, 16));
            if (at.me.g == 0) at.shared->amax[warp][token] = amax;
        }
    }
}

// Scale words and inverses of all tokens from the warps' maxima. A group is the task's 128 columns
// (FP32) or one warpgroup's 32 (UE8M0).
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void make_scales(SharedStorage<kMaxRows>* shared, std::uint32_t rows) {
    const std::uint32_t thread = ptx::thread_idx();
    const std::uint32_t groups = kK32 ? 4 : 1;
    const std::uint32_t warps = kMathWarps / groups;
    for (std::uint32_t i = thread; i < rows * groups; i += kMathThreads) {
        const std::uint32_t token = i / groups;
        const std::uint32_t group = i % groups;
        float amax = 0.0F;
        for (std::uint32_t w = 0; w < warps; ++w) {
            amax = numerics::max_nan(amax, shared->amax[group * warps + w][token]);
        }
        if constexpr (kK32) {
            const std::uint8_t code = numerics::ue8m0_scale_code(amax);
            shared->inverse[group][token] = numerics::ue8m0_inverse(code);
            reinterpret_cast<std::uint8_t*>(&shared->scale_words[token])[group] = code;
        } else {
            shared->inverse[0][token] = numerics::fp32_inverse_scale(amax);
            shared->scale_words[token] = numerics::float_to_bits(numerics::fp32_scale(amax));
        }
    }
}

// h -> codes in the results buffer, (rows, 128) bytes as the destination keeps them.
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void quantise(const EpilogueTask<kMaxRows>& at, bool routed,
                                         const float* h) {
    auto* tile = reinterpret_cast<std::uint8_t*>(at.shared->results);
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint32_t column = 32 * at.me.warpgroup + 8 * at.me.warp + at.me.g;
    const auto byte = static_cast<std::uint32_t>(
        routed ? layout::k_byte_position(at.gpu.order, static_cast<int>(column))
               : static_cast<int>(column));
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i) {
            const std::uint32_t token = 8 * t + 2 * at.me.q + i;
            const float inverse = at.shared->inverse[kK32 ? at.me.warpgroup : 0][token];
            const std::uint8_t code = numerics::e4m3_from_float(h[2 * t + i] * inverse);
            const auto to = routed ? static_cast<std::uint32_t>(layout::ring_byte_offset(
                                         static_cast<int>(token), static_cast<int>(byte)))
                                   : token * 128 + byte;
            tile[to] = code;
            if (routed && memory.local.has_capture != 0 && token < at.task.rows) {
                const layout::Origin& origin = at.origin(token);
                const std::uint64_t row = origin.rank * memory.heap.max_slots() + origin.slot;
                const std::uint64_t chunk = row * memory.inter_chunks + at.task.index;
                memory.at<std::uint8_t>(memory.local.capture_act)[chunk * 128 + column] = code;
            }
        }
    }
}

// Rows of the block that a role may see: codes, scales, and with task 0 the origins (R17).
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void store_ring_chunk(const EpilogueTask<kMaxRows>& at) {
    const layout::RankMemory& memory = at.gpu.memory;
    const layout::ChunkedRows act = memory.ring_act();
    const protocol::Block block = at.block();
    const std::uint32_t thread = ptx::thread_idx();
    const auto* tile = reinterpret_cast<const ptx::Words4*>(at.shared->results);
    auto* to = reinterpret_cast<ptx::Words4*>(act.chunk(block.place, at.task.index));
    for (std::uint32_t i = thread; i < at.task.rows * 8; i += kMathThreads) to[i] = tile[i];
    for (std::uint32_t row = thread; row < at.task.rows; row += kMathThreads) {
        act.scale(block.place, at.task.index)[row] = at.shared->scale_words[row];
        if (memory.local.has_capture != 0) {
            const layout::Origin& origin = at.origin(row);
            const std::uint64_t captured = origin.rank * memory.heap.max_slots() + origin.slot;
            memory.at<std::uint32_t>(
                memory.local.capture_act_scale)[captured * memory.inter_chunks + at.task.index] =
                at.shared->scale_words[row];
        }
        if (at.task.index == 0) memory.act_origins(block.place)[row] = at.origin(row);
    }
}

template <std::uint32_t kMaxRows>
__device__ __forceinline__ void store_shared_chunk(const EpilogueTask<kMaxRows>& at) {
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint32_t first = at.task.block * memory.plan.row_block;
    const auto* tile = reinterpret_cast<const ptx::Words4*>(at.shared->results);
    auto* codes = memory.at<std::uint8_t>(memory.local.shared_act);
    auto* words = memory.at<std::uint32_t>(memory.local.shared_act_scale);
    for (std::uint32_t i = ptx::thread_idx(); i < at.task.rows * 8; i += kMathThreads) {
        const std::uint64_t chunk =
            std::uint64_t{first + i / 8} * memory.shared_chunks + at.task.index;
        reinterpret_cast<ptx::Words4*>(codes + chunk * 128)[i % 8] = tile[i];
        if (i % 8 == 0) words[chunk] = at.shared->scale_words[i / 8];
    }
}

// First GEMM: SwiGLU, weight, requantisation, hand-over of one chunk.
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_first(const EpilogueTask<kMaxRows>& at,
                                             const GpuMatrix* matrix, const float* sum) {
    const layout::RankMemory& memory = at.gpu.memory;
    const bool routed = matrix != nullptr;
    // All chunks of x are in this CTA, and the signal warp has read the origins (R13, R14).
    if (routed && at.may_signal())
        protocol::TokenRing<GpuMemory>::consumer_release(memory, at.block());
    float h[kN / 4];
    activate<kN>(at, matrix, sum, h);
    math_barrier();
    make_scales<kK32>(at.shared, round_up(at.task.rows, 8U));
    math_barrier();
    quantise<kN, kK32>(at, routed, h);
    if (routed && at.may_signal() &&
        !protocol::ActivationRing<GpuMemory>::producer_acquire(memory, at.launch, at.block())) {
        at.shared->abort = 1;
    }
    math_barrier();
    if (aborted(&at.shared->abort)) return;
    if (routed) {
        store_ring_chunk(at);
    } else {
        store_shared_chunk(at);
    }
    ptx::fence_async_proxy();  // read by the copy engine of other SMs
    math_barrier();
    if (!at.may_signal()) return;
    if (routed) {
        protocol::ActivationRing<GpuMemory>::producer_commit(memory, at.block(), at.task.index);
    } else {
        protocol::commit_shared<GpuMemory>(memory, at.task.block);
    }
}

// Second GEMM: results of this thread's two columns into the results buffer, as bf16.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void round_results(const EpilogueTask<kMaxRows>& at,
                                              const GpuMatrix* matrix, const float* sum) {
    float factor[2];
    float bias[2];
    load_row_terms(matrix, at.packed_row(0), at.packed_row(1), factor, bias);
    const bool has_bias = matrix != nullptr && matrix->bias != nullptr;
    const bool weigh =
        matrix != nullptr && at.gpu.weight_placement == WeightPlacement::kAfterSecondGemm;
#pragma unroll
    for (std::uint32_t t = 0; t < kN / 8; ++t) {
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) {
            const std::uint32_t half = i / 2;
            const std::uint32_t token = 8 * t + 2 * at.me.q + i % 2;
            float z = sum[4 * t + i] * factor[half];
            if (weigh) {
                z = at.origin(token).weight * (z + bias[half]);
            } else if (has_bias) {
                z = z + at.origin(token).weight * bias[half];
            }
            at.shared->results[token][64 * at.me.warpgroup + at.me.row(half)] =
                numerics::bf16_from_float(z);
        }
    }
}

// The row of a token that a task's results go to, at the task's first column.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint16_t* result_row(const EpilogueTask<kMaxRows>& at,
                                                     std::uint32_t row) {
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint32_t column = at.task.index * kTileColumns;
    if (is_shared(at.task.kind)) {
        const std::uint32_t token = at.task.block * memory.plan.row_block + row;
        return memory.at<std::uint16_t>(memory.local.shared_row) +
               std::uint64_t{token} * at.gpu.hidden + column;
    }
    const layout::Origin& origin = at.origin(row);
    return memory.heap.combine_row(memory.peers.heap(static_cast<int>(origin.rank)), origin.slot) +
           column;
}

// Second GEMM: rows straight to the owners, then the rows are counted off (R21).
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_second(const EpilogueTask<kMaxRows>& at,
                                              const GpuMatrix* matrix, const float* sum,
                                              bool active) {
    const layout::RankMemory& memory = at.gpu.memory;
    const bool routed = matrix != nullptr;
    if (routed && at.may_signal())
        protocol::ActivationRing<GpuMemory>::consumer_release(memory, at.block());
    if (active) round_results<kN>(at, matrix, sum);
    math_barrier();
    const std::uint32_t left = at.gpu.hidden - at.task.index * kTileColumns;
    const std::uint32_t units = (left < kTileColumns ? left : kTileColumns) / 8;
    const bool store = !aborted(&at.shared->abort);
    for (std::uint32_t i = ptx::thread_idx(); store && i < at.task.rows * units;
         i += kMathThreads) {
        const std::uint32_t row = i / units;
        const std::uint32_t unit = i % units;
        reinterpret_cast<ptx::Words4*>(result_row(at, row))[unit] =
            *reinterpret_cast<const ptx::Words4*>(&at.shared->results[row][unit * 8]);
    }
    math_barrier();
    if (!routed || aborted(&at.shared->abort)) return;
    const std::uint32_t peer = ptx::thread_idx();
    if (peer >= memory.heap.num_ranks) return;
    std::uint32_t rows = 0;
    for (std::uint32_t row = 0; row < at.task.rows; ++row)
        rows += at.origin(row).rank == peer ? 1 : 0;
    if (rows != 0) protocol::count_off_rows<GpuMemory>(memory, at.launch, peer, rows);
}

}  // namespace gcmoe::cuda::gemm
