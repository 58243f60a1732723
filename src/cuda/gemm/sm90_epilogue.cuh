// Epilogues of role 2: SwiGLU with requantisation, and results to the owners of the tokens.
//
// A warpgroup's sums stand in shared memory as (rows, 64) floats, of 32 tokens at once; a warp
// takes four tokens at a time, eight lanes a token. So the work follows the live rows, not N, and
// there is one copy of this code: instructions that are not in the cache yet cost an SM about 5 us.
// One barrier of all math threads per first-GEMM task (the amax over its 128 columns); otherwise
// warpgroups go their own way. A warp that has stored arrives at task_done, and the finish warp
// signals.
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
    // Row of the shared expert's activations.
    [[nodiscard]] __device__ __forceinline__ std::uint64_t shared_chunk(std::uint32_t row) const {
        const std::uint64_t token = task.block * gpu.memory.plan.row_block + row;
        return token * gpu.memory.shared_chunks + task.index;
    }
    // The warpgroup's sum of a token and a row of its tile; the order keeps the accumulators'
    // stores free of bank conflicts and pairs of rows together.
    [[nodiscard]] __device__ __forceinline__ float* sum(std::uint32_t token,
                                                        std::uint32_t row) const {
        constexpr std::uint32_t kSumRows = SharedStorage<kMaxRows>::kSumRows;
        return &shared->sums[me.warpgroup][token % kSumRows][row ^ 8 * (token / 2 % 4)];
    }
    __device__ __forceinline__ void warpgroup_barrier() const {
        ptx::named_barrier(kWarpgroupBarrier + me.warpgroup, 128);
    }
};

// Tokens of a task that are finished at once: those whose sums shared memory holds.
struct TokenRange {
    std::uint32_t begin;
    std::uint32_t end;
};

// This thread's accumulators of kN tokens (kN / 2) to the warpgroup's sums.
template <std::uint32_t kN, std::uint32_t kMaxRows>
__device__ __forceinline__ void stage_sums(const EpilogueTask<kMaxRows>& at, const float* sum) {
#pragma unroll
    for (std::uint32_t i = 0; i < kN / 2; ++i) {
        *at.sum(8 * (i / 4) + 2 * at.me.q + i % 2, at.me.row(i / 2 % 2)) = sum[i];
    }
}

// What a thread takes of a warpgroup's sums: kColumns neighbours of one token. Lane 8 t + m has
// token `first` + t, columns kColumns * m on.
template <std::uint32_t kColumns>
struct LaneColumns {
    std::uint32_t token;
    std::uint32_t column;
    std::uint32_t m;
    template <std::uint32_t kMaxRows>
    __device__ __forceinline__ static LaneColumns at(const EpilogueTask<kMaxRows>& task,
                                                     std::uint32_t first) {
        const std::uint32_t m = task.lane() % 8;
        return {first + task.lane() / 8, kColumns * m, m};
    }
};
// A warp takes four tokens at once, every fourth group of four.
inline constexpr std::uint32_t kWarpTokens = 4;
inline constexpr std::uint32_t kTokenStride = 4 * kWarpTokens;

struct alignas(16) Floats4 {
    float f[4];
};
template <std::uint32_t kMaxRows>
__device__ __forceinline__ Floats4* four_sums(const EpilogueTask<kMaxRows>& at, std::uint32_t token,
                                              std::uint32_t row) {
    return reinterpret_cast<Floats4*>(at.sum(token, row));
}

// Factors and biases of four rows of the warpgroup's tile; FP8 and chunk-form weights carry theirs
// already.
struct RowTerms {
    Floats4 factor;
    Floats4 bias;
};

template <std::uint32_t kMaxRows>
__device__ __forceinline__ RowTerms row_terms(const EpilogueTask<kMaxRows>& at, std::uint32_t row) {
    const GpuMatrix& matrix = at.task.matrix;
    const std::uint32_t in_task = 64 * at.me.warpgroup + row;
    RowTerms terms{{1.0F, 1.0F, 1.0F, 1.0F}, {}};
    if (matrix.row_factors != nullptr) {
        terms.factor = *reinterpret_cast<const Floats4*>(&at.shared->row_factors[at.slot][in_task]);
    }
    if (matrix.bias != nullptr) {
        terms.bias =
            *reinterpret_cast<const Floats4*>(matrix.bias + at.task.index * kTileColumns + in_task);
    }
    return terms;
}

struct HardwareMath {
    __device__ __forceinline__ static float min_nan(float a, float b) { return ptx::min_nan(a, b); }
    __device__ __forceinline__ static float max_nan(float a, float b) { return ptx::max_nan(a, b); }
    __device__ __forceinline__ static float exp(float x) { return ptx::exp(x); }
    __device__ __forceinline__ static float reciprocal(float x) { return ptx::reciprocal(x); }
};

// Packed row of a column's gate; the up stands 8 rows further.
__device__ __forceinline__ std::uint32_t gate_row(std::uint32_t column) {
    return 16 * (column / 8) + column % 8;
}

// The largest of the eight lanes that share a token.
__device__ __forceinline__ std::uint32_t token_max(std::uint32_t value) {
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) {
        const std::uint32_t other = ptx::shuffle_xor(value, mask);
        if (other > value) value = other;
    }
    return value;
}

// Sums -> activated, weighted columns in the place of the gates, and their maxima over the group's
// columns (UE8M0: the warpgroup's 32, FP32: the task's 128) in shared->amax. Magnitudes are
// compared as bits: NaN is the largest. Rows past the last live one are worked on, too, for the
// shuffles' sake; what they give is not used.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void activate(const EpilogueTask<kMaxRows>& at,
                                         const TokenRange& tokens) {
    const std::uint32_t row = gate_row(LaneColumns<4>::at(at, 0).column);
    const RowTerms gate = row_terms(at, row);
    const RowTerms up = row_terms(at, row + 8);
    const bool weigh = at.routed() && at.gpu.weight_placement == WeightPlacement::kBeforeRequantise;
    std::uint32_t* amax_of = at.shared->amax[at.slot][kK32 ? at.me.warpgroup : 0];
#pragma unroll 1
    for (std::uint32_t first = tokens.begin + kWarpTokens * at.me.warp; first < tokens.end;
         first += kTokenStride) {
        const auto own = LaneColumns<4>::at(at, first);
        Floats4 value = *four_sums(at, own.token, row);
        const Floats4 up_value = *four_sums(at, own.token, row + 8);
        const float weight = weigh ? at.origin(own.token).weight : 1.0F;
        std::uint32_t amax = 0;
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) {
            value.f[i] = numerics::swiglu<HardwareMath>(
                value.f[i] * gate.factor.f[i] + gate.bias.f[i],
                up_value.f[i] * up.factor.f[i] + up.bias.f[i], at.gpu.activation);
            if (weigh) value.f[i] *= weight;
            const std::uint32_t bits = numerics::float_to_bits(numerics::abs(value.f[i]));
            if (bits > amax) amax = bits;
        }
        *four_sums(at, own.token, row) = value;
        amax = token_max(amax);
        if (own.m == 0 && own.token < tokens.end) ptx::shared_max(&amax_of[own.token], amax);
    }
}

// Where the scale of a row of this task's chunk goes.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ std::uint32_t* scale_word(const EpilogueTask<kMaxRows>& at,
                                                     std::uint32_t row) {
    const layout::RankMemory& memory = at.gpu.memory;
    if (at.routed()) return memory.ring_act().scale(at.task.place, at.task.index) + row;
    return memory.at<std::uint32_t>(memory.local.shared_act_scale) + at.shared_chunk(row);
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

// What a row is multiplied by before the cast. One lane a group stores the scale itself: of the CTA
// (FP32), or of each warpgroup (UE8M0).
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ float scale_row(const EpilogueTask<kMaxRows>& at,
                                           const LaneColumns<4>& own) {
    const std::uint32_t group = kK32 ? at.me.warpgroup : 0;
    const float amax = numerics::bits_to_float(at.shared->amax[at.slot][group][own.token]);
    const bool stores = own.m == 0 && (kK32 || at.me.warpgroup == 0);
    if constexpr (kK32) {
        const std::uint8_t code = numerics::ue8m0_scale_code(amax);
        if (stores) store_scale<kK32>(at, own.token, code);
        return numerics::ue8m0_inverse(code);
    } else {
        if (stores) {
            store_scale<kK32>(at, own.token, numerics::float_to_bits(numerics::fp32_scale(amax)));
        }
        return numerics::fp32_inverse_scale(amax);
    }
}

// Activated columns -> codes and scales in the ring, or the shared expert's activations. Four
// columns are one word in either K order.
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void store_chunk(const EpilogueTask<kMaxRows>& at,
                                            const TokenRange& tokens) {
    const layout::RankMemory& memory = at.gpu.memory;
    const std::uint32_t in_group = LaneColumns<4>::at(at, 0).column;
    const std::uint32_t column = 32 * at.me.warpgroup + in_group;
    const int byte = layout::k_byte_position(at.gpu.order, static_cast<int>(column));
    std::uint8_t* chunk = memory.ring_act().chunk(at.task.place, at.task.index);
    const bool captures = at.routed() && memory.local.has_capture != 0;
#pragma unroll 1
    for (std::uint32_t first = tokens.begin + kWarpTokens * at.me.warp; first < tokens.end;
         first += kTokenStride) {
        const auto own = LaneColumns<4>::at(at, first);
        if (own.token >= tokens.end) continue;
        const Floats4 value = *four_sums(at, own.token, gate_row(in_group));
        const float scale = scale_row<kK32>(at, own);
        const std::uint32_t codes = ptx::e4m3_pair(value.f[0] * scale, value.f[1] * scale) |
                                    ptx::e4m3_pair(value.f[2] * scale, value.f[3] * scale) << 16;
        const auto put = [codes](std::uint8_t* to) {
            *reinterpret_cast<std::uint32_t*>(to) = codes;
        };
        if (at.routed()) {
            put(chunk + layout::ring_byte_offset(static_cast<int>(own.token), byte));
        } else {
            put(memory.at<std::uint8_t>(memory.local.shared_act) +
                at.shared_chunk(own.token) * 128 + column);
        }
        if (captures) {
            put(memory.at<std::uint8_t>(memory.local.capture_act) + at.captured(own.token) * 128 +
                column);
        }
    }
}

// First GEMM: SwiGLU, weight, requantisation, one chunk to the second GEMM; with task 0 the origins
// (R17).
template <bool kK32, std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_first(const EpilogueTask<kMaxRows>& at,
                                             const TokenRange& tokens) {
    activate<kK32>(at, tokens);
    ptx::named_barrier(kMathBarrier, kMathThreads);
    wait_phase(&at.shared->may_store[at.slot], at.phase, &at.shared->abort);  // R15, R16
    if (aborted(&at.shared->abort)) return;  // origins may be anything
    store_chunk<kK32>(at, tokens);
    if (at.routed() && at.task.index == 0 && at.me.warpgroup == 1 && at.me.warp == 0) {
        layout::Origin* to = at.gpu.memory.act_origins(at.task.place);
        for (std::uint32_t row = tokens.begin + at.lane(); row < tokens.end; row += 32) {
            to[row] = at.origin(row);
        }
    }
    ptx::fence_async_proxy();  // read by the copy engine of other SMs
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

// Second GEMM: the warpgroup's 64 columns of each row as bf16 straight to the row's owner, 128
// bytes a row, eight columns a lane.
template <std::uint32_t kMaxRows>
__device__ __forceinline__ void finish_second(const EpilogueTask<kMaxRows>& at,
                                              const TokenRange& tokens) {
    const std::uint32_t column = LaneColumns<8>::at(at, 0).column;
    const RowTerms terms[2] = {row_terms(at, column), row_terms(at, column + 4)};
    const bool has_bias = at.task.matrix.bias != nullptr;
    const bool weigh = at.routed() && at.gpu.weight_placement == WeightPlacement::kAfterSecondGemm;
    if (aborted(&at.shared->abort)) return;  // origins may be anything
#pragma unroll 1
    for (std::uint32_t first = tokens.begin + kWarpTokens * at.me.warp; first < tokens.end;
         first += kTokenStride) {
        const auto own = LaneColumns<8>::at(at, first);
        if (own.token >= tokens.end) continue;
        const float weight = weigh || has_bias ? at.origin(own.token).weight : 0.0F;
        ptx::Words4 out;
#pragma unroll
        for (std::uint32_t part = 0; part < 2; ++part) {
            Floats4 z = *four_sums(at, own.token, column + 4 * part);
#pragma unroll
            for (std::uint32_t i = 0; i < 4; ++i) {
                z.f[i] = z.f[i] * terms[part].factor.f[i];
                if (weigh) {
                    z.f[i] = weight * (z.f[i] + terms[part].bias.f[i]);
                } else if (has_bias) {
                    z.f[i] = z.f[i] + weight * terms[part].bias.f[i];
                }
            }
            out.w[2 * part] = ptx::bf16_pair(z.f[0], z.f[1]);
            out.w[2 * part + 1] = ptx::bf16_pair(z.f[2], z.f[3]);
        }
        *reinterpret_cast<ptx::Words4*>(result_row(at, own.token) + column) = out;
    }
}

}  // namespace gcmoe::cuda::gemm
