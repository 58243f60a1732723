// Epilogues of role 2: SwiGLU with requantisation, and results to the owners of the tokens.
//
// Column of a thread in a first-GEMM task: 32 * warpgroup + 8 * warp + g, gate and up in the same
// thread; tokens 8 t + 2 q and + 1 of each N tile t. One barrier of all math threads per first-GEMM
// task (the amax over its 128 columns); otherwise warpgroups go their own way, and a warp that has
// stored arrives at task_done. The task warp signals.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_math.cuh"
#include "numerics/bf16.hpp"
#include "numerics/quantise.hpp"
#include "numerics/swiglu.hpp"

namespace gcmoe::cuda::gemm {

// A task as a math thread sees it.
template <std::uint32_t kMaxRows>
struct EpilogueTask {
    const GpuLaunch& gpu;
    SharedStorage<kMaxRows>* shared;
    const GpuTask& task;
    std::uint32_t slot;   // task slot, for its origins and row factors
    std::uint32_t phase;  // of the slot
    MathThread me;

    [[nodiscard]] __device__ __forceinline__ const layout::Origin& origin(std::uint32_t row) const {
        return shared->origins[slot][row];
    }
    [[nodiscard]] __device__ __forceinline__ bool routed() const { return !is_shared(task.kind); }
    [[nodiscard]] __device__ __forceinline__ std::uint32_t lane() const { return 4 * me.g + me.q; }
    // Row of `capture_act` of a ring row.
    [[nodiscard]] __device__ __forceinline__ std::uint64_t captured(std::uint32_t row) const {
        const layout::Origin& from = origin(row);
        return (from.rank * gpu.memory.heap.max_slots() + from.slot) * gpu.memory.inter_chunks +
               task.index;
    }
    // Nobody reads the warpgroup's results of the last task any more; or: they are all written.
    __device__ __forceinline__ void warpgroup_barrier() const {
        ptx::named_barrier(kWarpgroupBarrier + me.warpgroup, 128);
    }
};

// Factor and bias of this thread's two rows; FP8 and chunk-form weights carry theirs already.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void load_row_terms(const EpilogueTask<kMaxRows>& at, float* factor,
                                               float* bias) {
    const GpuMatrix& matrix = at.task.matrix;
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
        const std::uint32_t row = 64 * at.me.warpgroup + at.me.row(half);
        factor[half] = matrix.row_factors != nullptr ? at.shared->row_factors[at.slot][row] : 1.0F;
        bias[half] = matrix.bias != nullptr ? matrix.bias[at.task.index * kTileColumns + row] : 0.0F;
    }
}

// sum (kN / 2) -> h (kN / 4): activated, weighted columns of this thread, and their maxima over the
// warp's 8 columns into shared->amax. Magnitudes are compared as bits: NaN is the largest.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void activate(const EpilogueTask<kMaxRows>& at, const float* sum,
                                         float* h) {
    float factor[2];
    float bias[2];
    load_row_terms(at, factor, bias);
    const bool weigh =
        at.routed() && at.gpu.weight_placement == WeightPlacement::kBeforeRequantise;
    std::uint32_t* amax_of = at.shared->amax[at.slot][4 * at.me.warpgroup + at.me.warp];
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 4; ++i) {
        const std::uint32_t token = 8 * (i / 2) + 2 * at.me.q + i % 2;
        const float gate = sum[4 * (i / 2) + i % 2] * factor[0] + bias[0];
        const float up = sum[4 * (i / 2) + 2 + i % 2] * factor[1] + bias[1];
        float value = numerics::swiglu(gate, up, at.gpu.activation);
        if (weigh) value *= at.origin(token).weight;
        h[i] = value;
        std::uint32_t amax = numerics::float_to_bits(numerics::abs(value));
#pragma unroll
        for (const int distance : {4, 8, 16}) {
            const std::uint32_t other = ptx::shuffle_xor(amax, distance);
            amax = amax < other ? other : amax;
        }
        if (at.me.g == 0) amax_of[token] = amax;
    }
}

// Scale of the token `token` over the columns of its group: the task's 128 (FP32), or the
// warpgroup's 32 (UE8M0). `word`: the scale's bits, or its code.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ float scale_of(const EpilogueTask<kMaxRows>& at, std::uint32_t token,
                                          std::uint32_t* word) {
    constexpr std::uint32_t kWarps = kK32 ? 4 : kMathWarps;
    const std::uint32_t first = kK32 ? 4 * at.me.warpgroup : 0;
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t w = 0; w < kWarps; ++w) {
        const std::uint32_t other = at.shared->amax[at.slot][first + w][token];
        bits = bits < other ? other : bits;
    }
    const float amax = numerics::bits_to_float(bits);
    if constexpr (kK32) {
        const std::uint8_t code = numerics::ue8m0_scale_code(amax);
        *word = code;
        return numerics::ue8m0_inverse(code);
    } else {
        *word = numerics::float_to_bits(numerics::fp32_scale(amax));
        return numerics::fp32_inverse_scale(amax);
    }
}

// Where the scale of a row of this task's chunk goes.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint32_t* scale_word(const EpilogueTask<kMaxRows>& at,
                                                     std::uint32_t row) {
    const layout::RankMemory& memory = at.gpu.memory;
    if (at.routed()) return memory.ring_act().scale(at.task.place, at.task.index) + row;
    const std::uint64_t token = at.task.block * memory.plan.row_block + row;
    return memory.at<std::uint32_t>(memory.local.shared_act_scale) + token * memory.shared_chunks +
           at.task.index;
}

// One warp a group stores it: FP32 words by warp 0 of the CTA, UE8M0 bytes by each warpgroup's.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void store_scale(const EpilogueTask<kMaxRows>& at, std::uint32_t row,
                                            std::uint32_t word) {
    const layout::RankMemory& memory = at.gpu.memory;
    if (at.me.warp != 0 || (!kK32 && at.me.warpgroup != 0) || row >= at.task.rows) return;
    const auto put = [&](std::uint32_t* to) {
        if constexpr (kK32) {
            reinterpret_cast<std::uint8_t*>(to)[at.me.warpgroup] = static_cast<std::uint8_t>(word);
        } else {
            *to = word;
        }
    };
    put(scale_word(at, row));
    if (at.routed() && memory.local.has_capture != 0) {
        put(memory.at<std::uint32_t>(memory.local.capture_act_scale) + at.captured(row));
    }
}

// This warp's codes, (kN, 8) bytes in its part of the results buffer.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint8_t* code_tile(const EpilogueTask<kMaxRows>& at) {
    return reinterpret_cast<std::uint8_t*>(at.shared->results[at.me.warpgroup]) +
           at.me.warp * kMaxRows * 8;
}

// h -> codes in the warp's tile, scales to the destination.
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void quantise(const EpilogueTask<kMaxRows>& at, const float* h) {
    std::uint8_t* tile = code_tile(at);
#pragma unroll
    for (std::uint32_t first = 0; first < kN; first += 32) {
        const std::uint32_t row = first + at.lane();  // past kN: not used
        std::uint32_t word = 0;
        const float own = scale_of<kK32>(at, row < kN ? row : 0, &word);
        store_scale<kK32>(at, row, word);
#pragma unroll
        for (std::uint32_t i = 0; i < kN / 4; ++i) {
            if (8 * (i / 2) < first || 8 * (i / 2) >= first + 32) continue;
            const std::uint32_t token = 8 * (i / 2) + 2 * at.me.q + i % 2;
            const float inverse = ptx::shuffle(own, static_cast<int>(token - first));
            tile[token * 8 + at.me.g] = numerics::e4m3_from_float(h[i] * inverse);
        }
    }
    ptx::warp_barrier();
}

// The warp's codes to the ring (or shared_act), in words of 4 columns.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void store_codes(const EpilogueTask<kMaxRows>& at) {
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint8_t* tile = code_tile(at);
    for (std::uint32_t i = at.lane(); i < 2 * at.task.rows; i += 32) {
        const std::uint32_t row = i / 2;
        const std::uint32_t column = 32 * at.me.warpgroup + 8 * at.me.warp + 4 * (i % 2);
        const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(tile + 4 * i);
        if (!at.routed()) {
            const std::uint64_t token = at.task.block * memory.plan.row_block + row;
            const std::uint64_t chunk = token * memory.shared_chunks + at.task.index;
            *reinterpret_cast<std::uint32_t*>(memory.at<std::uint8_t>(memory.local.shared_act) +
                                              chunk * 128 + column) = word;
            continue;
        }
        const int byte = layout::k_byte_position(at.gpu.order, static_cast<int>(column));
        std::uint8_t* chunk = memory.ring_act().chunk(at.task.place, at.task.index);
        *reinterpret_cast<std::uint32_t*>(
            chunk + layout::ring_byte_offset(static_cast<int>(row), byte)) = word;
        if (memory.local.has_capture != 0) {
            *reinterpret_cast<std::uint32_t*>(memory.at<std::uint8_t>(memory.local.capture_act) +
                                              at.captured(row) * 128 + column) = word;
        }
    }
}

// First GEMM: SwiGLU, weight, requantisation, one chunk to the second GEMM; with task 0 the origins
// (R17).
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_first(const EpilogueTask<kMaxRows>& at, const float* sum) {
    float h[kN / 4];
    activate<kN>(at, sum, h);
    ptx::named_barrier(kMathBarrier, kMathThreads);
    wait_phase(&at.shared->may_store[at.slot], at.phase, &at.shared->abort);  // R15, R16
    quantise<kN, kK32>(at, h);
    store_codes(at);
    if (at.routed() && at.task.index == 0 && at.me.warpgroup == 1 && at.me.warp == 0) {
        layout::Origin* to = at.gpu.memory.act_origins(at.task.place);
        for (std::uint32_t row = at.lane(); row < at.task.rows; row += 32) to[row] = at.origin(row);
    }
    ptx::fence_async_proxy();  // read by the copy engine of other SMs
}

// Second GEMM: results of this thread's two columns into the results buffer, as bf16.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void round_results(const EpilogueTask<kMaxRows>& at, const float* sum) {
    float factor[2];
    float bias[2];
    load_row_terms(at, factor, bias);
    const bool has_bias = at.task.matrix.bias != nullptr;
    const bool weigh = at.routed() && at.gpu.weight_placement == WeightPlacement::kAfterSecondGemm;
    std::uint16_t* results = at.shared->results[at.me.warpgroup];
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        const std::uint32_t half = i / 2 % 2;
        const std::uint32_t token = 8 * (i / 4) + 2 * at.me.q + i % 2;
        float z = sum[i] * factor[half];
        if (weigh) {
            z = at.origin(token).weight * (z + bias[half]);
        } else if (has_bias) {
            z = z + at.origin(token).weight * bias[half];
        }
        results[token * kResultStride + at.me.row(half)] = numerics::bf16_from_float(z);
    }
}

// The row of a token that a task's results go to, at the warpgroup's first column.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint16_t* result_row(const EpilogueTask<kMaxRows>& at,
                                                     std::uint32_t row) {
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint32_t column = at.task.index * kTileColumns + 64 * at.me.warpgroup;
    if (!at.routed()) {
        const std::uint32_t token = at.task.block * memory.plan.row_block + row;
        return memory.at<std::uint16_t>(memory.local.shared_row) +
               std::uint64_t{token} * at.gpu.hidden + column;
    }
    const layout::Origin& origin = at.origin(row);
    return memory.heap.combine_row(memory.peers.heap(static_cast<int>(origin.rank)), origin.slot) +
           column;
}

// Second GEMM: the warpgroup's 64 columns of each row straight to the row's owner, 128 bytes a row.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_second(const EpilogueTask<kMaxRows>& at, const float* sum) {
    round_results<kN>(at, sum);
    at.warpgroup_barrier();
    if (aborted(&at.shared->abort)) return;  // no barrier follows
    const std::uint16_t* results = at.shared->results[at.me.warpgroup];
    for (std::uint32_t i = 32 * at.me.warp + at.lane(); i < at.task.rows * 8; i += 128) {
        const std::uint32_t row = i / 8;
        const std::uint32_t unit = i % 8;
        reinterpret_cast<ptx::Words4*>(result_row(at, row))[unit] =
            *reinterpret_cast<const ptx::Words4*>(&results[row * kResultStride + unit * 8]);
    }
}

}  // namespace gcmoe::cuda::gemm
