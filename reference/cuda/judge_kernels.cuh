// The judge's kernels: units, rows, sums, distances. What is added up over threads is added up in a
// fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "reference/cuda/layer_kernels.cuh"
#include "reference/judge_report.hpp"

namespace gcmoe::reference {

inline constexpr unsigned kRowThreads = 128;  // judge one row
inline constexpr unsigned kDistanceThreads = 128;
inline constexpr unsigned kDistanceCtas = 64;  // per rank

// Merges the tallies of a CTA's threads into thread 0's. Shapes: shared (kThreads).
template <unsigned kThreads, class Tally>
__device__ void merge_cta(Tally* own, Tally* shared) {
    shared[threadIdx.x] = *own;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x].merge(shared[threadIdx.x + half]);
        __syncthreads();
    }
    *own = shared[0];
    __syncthreads();
}

struct SquareSum {
    double sum = 0;
    __device__ void merge(const SquareSum& other) { sum += other.sum; }
};

// Where the units of tau of one product stand; one of the two is set.
struct UnitArrays {
    double* rows = nullptr;      // (num_rows)
    double* elements = nullptr;  // (num_rows, cols)
    [[nodiscard]] __device__ UnitRow of(int row, int cols) const {
        if (elements == nullptr) return {nullptr, rows[row]};
        return {elements + static_cast<std::size_t>(row) * static_cast<std::size_t>(cols), 0.0};
    }
};

// The RMS of every row. Grid: a CTA per row. Shapes: values (rows, cols).
__global__ void __launch_bounds__(kRowThreads)
    row_units(const double* values, int cols, double* units) {
    __shared__ SquareSum shared[kRowThreads];
    const double* row = values + std::size_t{blockIdx.x} * static_cast<std::size_t>(cols);
    SquareSum own;
    for (int col = static_cast<int>(threadIdx.x); col < cols; col += kRowThreads) {
        own.sum += row[col] * row[col];
    }
    merge_cta<kRowThreads>(&own, shared);
    if (threadIdx.x == 0) units[blockIdx.x] = sqrt(own.sum / static_cast<double>(cols));
}

// Terms of the first GEMM's sums become their units, in place. Shapes: gate, up (num_rows, inter).
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    sum_units(BatchData<View> batch, double* gate, double* up) {
    Element at;
    if (!own_element(batch.num_rows, batch.inter, &at)) return;
    const ExpertMatrices<View>& expert = batch.experts[batch.rows[at.row].batch];
    gate[at.idx] = sum_unit(gate[at.idx], expert.gate_bias, at.col);
    up[at.idx] = sum_unit(up[at.idx], expert.up_bias, at.col);
}

// The second GEMM's. Shapes: terms (num_rows, hidden).
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    output_units(LayerData layer, BatchData<View> batch, double* terms) {
    Element at;
    if (!own_element(batch.num_rows, layer.shape.hidden, &at)) return;
    const RowInfo& row = batch.rows[at.row];
    terms[at.idx] =
        output_unit(terms[at.idx], batch.experts[row.batch].down_bias, at.col,
                    static_cast<double>(routing_weight(layer, row)), layer.shape.weight_placement);
}

// (a) and (b). Shapes: gate, up, gated (rows, inter), wanted (rows, hidden), verdicts (rows).
struct JudgeJob {
    Tolerance tolerance;
    const double* gate = nullptr;
    const double* up = nullptr;
    const double* gated = nullptr;
    const double* wanted = nullptr;
    UnitArrays gate_units;
    UnitArrays up_units;
    UnitArrays output_units;
    RowVerdict* verdicts = nullptr;
};

// Grid: a CTA per row.
template <class View>
__global__ void __launch_bounds__(kRowThreads)
    judge_rows(LayerData layer, BatchData<View> batch, JudgeJob job) {
    __shared__ RowTally shared[kRowThreads];
    const int row_idx = static_cast<int>(blockIdx.x);
    const RowInfo& row = batch.rows[row_idx];
    const int thread = static_cast<int>(threadIdx.x);
    const int hidden = layer.shape.hidden;

    const CodedRow act = act_row(layer.shape, layer.outputs, row.expert, row.place);
    const std::size_t begin_idx =
        static_cast<std::size_t>(row_idx) * static_cast<std::size_t>(batch.inter);
    const GatedRow gated{job.gate + begin_idx,
                         job.up + begin_idx,
                         job.gated + begin_idx,
                         job.gate_units.of(row_idx, batch.inter),
                         job.up_units.of(row_idx, batch.inter),
                         gated_weight(layer, row),
                         layer.shape.activation};
    const int group = scale_group(act.form);
    RowTally own;
    for (int begin = thread * group; begin < batch.inter; begin += kRowThreads * group) {
        judge_act_group(act, begin, gated, job.tolerance, &own);
    }
    merge_cta<kRowThreads>(&own, shared);
    own.finish(job.tolerance, batch.inter);
    if (thread == 0) job.verdicts[row_idx].act = own;

    const std::uint16_t* output = output_row(layer.shape, layer.outputs, row.place);
    const double* wanted =
        job.wanted + static_cast<std::size_t>(row_idx) * static_cast<std::size_t>(hidden);
    const UnitRow units = job.output_units.of(row_idx, hidden);
    own = RowTally{};
    for (int col = thread; col < hidden; col += kRowThreads) {
        judge_output(output[col], col, wanted[col], units, job.tolerance, &own);
    }
    merge_cta<kRowThreads>(&own, shared);
    own.finish(job.tolerance, hidden);
    if (thread == 0) job.verdicts[row_idx].output = own;
}

inline constexpr unsigned long long kNoWrongSum = ~0ULL;

// What y of a token and column is, and what its combine rows sum up to.
__device__ inline WrongSum sum_at(const LayerData& layer, const Place& token, int token_idx,
                                  int col) {
    const RankOutputs& own = layer.outputs[token.rank];
    const TokenRows rows = token_rows(layer.shape, own, token.token,
                                      layer.topk_idx + slot_idx(layer.shape, token_idx, 0));
    const std::uint16_t seen =
        own.y[static_cast<std::size_t>(token.token) * own.y_stride + static_cast<std::size_t>(col)];
    return {token.token, col, seen, combined_value(rows, col)};
}

// (c): the first wrong (token index * hidden + column) of every rank. Shapes: first (ranks).
__global__ void __launch_bounds__(kElementThreads)
    judge_sums(LayerData layer, unsigned long long* first) {
    Element at;
    if (!own_element(layer.total_tokens, layer.shape.hidden, &at)) return;
    const Place token = layer.tokens[at.row];
    const WrongSum sum = sum_at(layer, token, at.row, at.col);
    if (sum_is_right(sum.seen, sum.wanted)) return;
    atomicMin(first + token.rank, static_cast<unsigned long long>(at.idx));
}

// The bits behind those. Grid: a thread per rank.
__global__ void describe_sums(LayerData layer, const unsigned long long* first, WrongSum* out) {
    const unsigned rank = threadIdx.x;
    if (first[rank] == kNoWrongSum) return;
    const auto hidden = static_cast<unsigned long long>(layer.shape.hidden);
    const auto token_idx = static_cast<int>(first[rank] / hidden);
    out[rank] =
        sum_at(layer, layer.tokens[token_idx], token_idx, static_cast<int>(first[rank] % hidden));
}

// What (d) compares y with: the bit-true layer, or the plain one.
struct Wanted {
    const std::uint16_t* bits = nullptr;  // (tokens, hidden), or null
    const double* values = nullptr;       // (tokens, hidden), or null
    const int* token_base = nullptr;      // (ranks + 1)
    double* units = nullptr;              // (ranks, hidden); null = 1
    [[nodiscard]] __device__ double at(std::size_t idx) const {
        return bits != nullptr ? static_cast<double>(numerics::bf16_to_float(bits[idx]))
                               : values[idx];
    }
};

// The RMS of every column over a rank's tokens; 1 for columns of zeros. Grid: a thread per rank and
// column.
__global__ void __launch_bounds__(kElementThreads)
    distance_units(int num_ranks, int hidden, Wanted wanted) {
    Element at;
    if (!own_element(num_ranks, hidden, &at)) return;
    const int begin = wanted.token_base[at.row];
    const int end = wanted.token_base[at.row + 1];
    double sum = 0.0;
    for (int token = begin; token < end; ++token) {
        const double value =
            wanted.at(static_cast<std::size_t>(token) * static_cast<std::size_t>(hidden) +
                      static_cast<std::size_t>(at.col));
        sum += value * value;
    }
    const double rms = end > begin ? sqrt(sum / static_cast<double>(end - begin)) : 0.0;
    wanted.units[at.idx] = rms > 0.0 ? rms : 1.0;
}

// Grid: (kDistanceCtas, ranks). Shapes: out (ranks, kDistanceCtas).
__global__ void __launch_bounds__(kDistanceThreads)
    measure_distance(LayerData layer, Wanted wanted, DistanceSums* out) {
    __shared__ DistanceSums shared[kDistanceThreads];
    const unsigned rank = blockIdx.y;
    const RankOutputs& outputs = layer.outputs[rank];
    const auto hidden = static_cast<std::size_t>(layer.shape.hidden);
    const auto first = static_cast<std::size_t>(wanted.token_base[rank]) * hidden;
    const auto count = static_cast<std::size_t>(wanted.token_base[rank + 1]) * hidden - first;
    DistanceSums own;
    for (std::size_t i = std::size_t{blockIdx.x} * kDistanceThreads + threadIdx.x; i < count;
         i += std::size_t{kDistanceCtas} * kDistanceThreads) {
        const std::uint16_t seen = outputs.y[i / hidden * outputs.y_stride + i % hidden];
        const double unit =
            wanted.units != nullptr ? wanted.units[rank * hidden + i % hidden] : 1.0;
        own.add(static_cast<double>(numerics::bf16_to_float(seen)), wanted.at(first + i), unit);
    }
    merge_cta<kDistanceThreads>(&own, shared);
    if (threadIdx.x == 0) out[rank * kDistanceCtas + blockIdx.x] = own;
}

}  // namespace gcmoe::reference
