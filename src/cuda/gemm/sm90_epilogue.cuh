// Epilogues of role 2: SwiGLU with requantisation, and results to the owners of the tokens.
//
// Column of a thread in a first-GEMM task: 32 * warpgroup + 8 * warp + g, gate and up in the same
// thread; tokens 8 t + 2 q and + 1 of each N tile t. One barrier of all math threads per first-GEMM
// task (the amax over its 128 columns); otherwise warpgroups go their own way, and a warp that has
// stored arrives at task_done. The task warp signals.
#pragma once

#include <cstdint>

#include "cuda/gemm/sm90_math.cuh"
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
// group's columns into shared->amax. Magnitudes are compared as bits: NaN is the largest.
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void activate(const EpilogueTask<kMaxRows>& at, const float* sum,
                                         float* h) {
    float factor[2];
    float bias[2];
    load_row_terms(at, factor, bias);
    const bool weigh =
        at.routed() && at.gpu.weight_placement == WeightPlacement::kBeforeRequantise;
    std::uint32_t* amax_of = at.shared->amax[at.slot][kK32 ? at.me.warpgroup : 0];
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
        if (at.me.g == 0) ptx::shared_max(&amax_of[token], amax);
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

// Stores a row's scale: `value` is the FP32 word, or the code of this warpgroup's columns.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void store_scale(const EpilogueTask<kMaxRows>& at, std::uint32_t row,
                                            std::uint32_t value) {
    const layout::RankMemory& memory = at.gpu.memory;
    const auto put = [&](std::uint32_t* to) {
        if constexpr (kK32) {
            reinterpret_cast<std::uint8_t*>(to)[at.me.warpgroup] = static_cast<std::uint8_t>(value);
        } else {
            *to = value;
        }
    };
    put(scale_word(at, row));
    if (at.routed() && memory.local.has_capture != 0) {
        put(memory.at<std::uint32_t>(memory.local.capture_act_scale) + at.captured(row));
    }
}

// What row `row` is multiplied by before the cast. One warp a group stores the scale itself: warp 0
// of the CTA (FP32), or of each warpgroup (UE8M0).
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ float scale_row(const EpilogueTask<kMaxRows>& at, std::uint32_t row) {
    const bool stores =
        at.me.warp == 0 && (kK32 || at.me.warpgroup == 0) && row < at.task.rows;
    const std::uint32_t group = kK32 ? at.me.warpgroup : 0;
    const float amax = numerics::bits_to_float(at.shared->amax[at.slot][group][row]);
    if constexpr (kK32) {
        const std::uint8_t code = numerics::ue8m0_scale_code(amax);
        if (stores) store_scale<kK32>(at, row, code);
        return numerics::ue8m0_inverse(code);
    } else {
        if (stores) {
            store_scale<kK32>(at, row, numerics::float_to_bits(numerics::fp32_scale(amax)));
        }
        return numerics::fp32_inverse_scale(amax);
    }
}

// This warp's codes, (kN, 8) bytes in its part of the results buffer.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint8_t* code_tile(const EpilogueTask<kMaxRows>& at) {
    return reinterpret_cast<std::uint8_t*>(at.shared->results[at.me.warpgroup]) +
           at.me.warp * kMaxRows * 8;
}

// h -> codes in the warp's tile, scales to the destination. Lane l works out the scale of row l.
template <std::uint32_t kN, bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void quantise(const EpilogueTask<kMaxRows>& at, const float* h) {
    std::uint8_t* tile = code_tile(at) + at.me.g;
#pragma unroll
    for (std::uint32_t first = 0; first < kN; first += 32) {
        const std::uint32_t row = first + at.lane();
        const float own = scale_row<kK32>(at, row < kN ? row : 0);  // past kN: not used
#pragma unroll
        for (std::uint32_t t = first / 8; t < kN / 8 && t < first / 8 + 4; ++t) {
            const std::uint32_t token = 8 * t + 2 * at.me.q;
            const auto lane = static_cast<int>(token - first);
            const std::uint32_t codes = ptx::e4m3_pair(h[2 * t] * ptx::shuffle(own, lane),
                                                       h[2 * t + 1] * ptx::shuffle(own, lane + 1));
            tile[token * 8] = static_cast<std::uint8_t>(codes);
            tile[token * 8 + 8] = static_cast<std::uint8_t>(codes >> 8);
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
    activate<kN, kK32>(at, sum, h);
    { PROBE_BEGIN
    ptx::named_barrier(kMathBarrier, kMathThreads);
    PROBE_END(at.shared, 6) }
    wait_phase(&at.shared->may_store[at.slot], at.phase, &at.shared->abort);  // R15, R16
    quantise<kN, kK32>(at, h);
    store_codes(at);
    if (at.routed() && at.task.index == 0 && at.me.warpgroup == 1 && at.me.warp == 0) {
        layout::Origin* to = at.gpu.memory.act_origins(at.task.place);
        for (std::uint32_t row = at.lane(); row < at.task.rows; row += 32) to[row] = at.origin(row);
    }
    PROBE_BEGIN
    ptx::fence_async_proxy();  // read by the copy engine of other SMs
    PROBE_END(at.shared, 7)
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
    const auto result = [&](std::uint32_t i, std::uint32_t token) {
        const std::uint32_t half = i / 2 % 2;
        const float z = sum[i] * factor[half];
        if (weigh) return at.origin(token).weight * (z + bias[half]);
        return has_bias ? z + at.origin(token).weight * bias[half] : z;
    };
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 2; i += 2) {
        const std::uint32_t token = 8 * (i / 4) + 2 * at.me.q;
        std::uint16_t* to = results + token * kResultStride + at.me.row(i / 2 % 2);
        const std::uint32_t pair = ptx::bf16_pair(result(i, token), result(i + 1, token + 1));
        to[0] = static_cast<std::uint16_t>(pair);
        to[kResultStride] = static_cast<std::uint16_t>(pair >> 16);
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
