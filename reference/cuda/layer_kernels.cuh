// The bit-true layer between its GEMMs, a thread per element: the host's layer.cpp with the
// functions of element.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "reference/element.hpp"
#include "reference/layer.hpp"

namespace gcmoe::reference {

inline constexpr unsigned kElementThreads = 256;

// A row of a batch, and where its token stands among those of all ranks.
struct RowInfo {
    Place place;
    int expert = 0;  // global, or kSharedExpert
    int batch = 0;
    int token_idx = 0;  // 0..total tokens
};

// What belongs to the whole layer. By value; all pointers are device memory. Tokens of all ranks
// stand behind each other.
struct LayerData {
    Shape shape;
    int total_tokens = 0;
    const std::int64_t* topk_idx = nullptr;  // (tokens, topk)
    const float* topk_weight = nullptr;      // (tokens, topk)
    const Place* tokens = nullptr;           // (tokens) rank and token
    const RankOutputs* outputs = nullptr;    // (ranks) the backend's
    std::uint16_t* combine = nullptr;        // (tokens, topk, hidden) bit-true
    std::uint16_t* shared_row = nullptr;     // (tokens, hidden) bit-true, or null
    double* plain_rows = nullptr;            // (tokens, topk + 1, hidden), zeros in unused slots
    std::uint16_t* y = nullptr;              // (tokens, hidden) bit-true
    double* plain = nullptr;                 // (tokens, hidden)
};

// The batches of one kind of expert.
template <class View>
struct BatchData {
    const ExpertMatrices<View>* experts = nullptr;  // (batches)
    const RowInfo* rows = nullptr;                  // (num_rows)
    int num_rows = 0;
    int inter = 0;
};

// A place in a dense array of rows; false for threads past its end.
struct Element {
    int row;
    int col;
    std::size_t idx;
};
__device__ inline bool own_element(int num_rows, int cols, Element* out) {
    const std::int64_t idx = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (idx >= std::int64_t{num_rows} * cols) return false;
    *out = {static_cast<int>(idx / cols), static_cast<int>(idx % cols),
            static_cast<std::size_t>(idx)};
    return true;
}

__device__ inline float routing_weight(const LayerData& layer, const RowInfo& row) {
    if (row.place.slot == kSharedSlot) return 1.0F;
    return layer.topk_weight[slot_idx(layer.shape, row.token_idx, row.place.slot)];
}

// The weight that a row's activations get before they are requantised.
__device__ inline double gated_weight(const LayerData& layer, const RowInfo& row) {
    const bool weight_now = layer.shape.weight_placement == WeightPlacement::kBeforeRequantise;
    return weight_now ? static_cast<double>(routing_weight(layer, row)) : 1.0;
}

// gate and up get their bias. Shapes: gate, up, gated (num_rows, inter).
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    gate_rows(LayerData layer, BatchData<View> batch, double* gate, double* up, double* gated) {
    Element at;
    if (!own_element(batch.num_rows, batch.inter, &at)) return;
    const RowInfo& row = batch.rows[at.row];
    const ExpertMatrices<View>& expert = batch.experts[row.batch];
    gate[at.idx] = with_bias(gate[at.idx], expert.gate_bias, at.col);
    up[at.idx] = with_bias(up[at.idx], expert.up_bias, at.col);
    gated[at.idx] = numerics::swiglu_fp64(gate[at.idx], up[at.idx], layer.shape.activation) *
                    gated_weight(layer, row);
}

// A thread per row and 128 columns. Shapes: gated, codes (num_rows, inter), scales (num_rows,
// inter / 128).
__global__ void __launch_bounds__(kElementThreads)
    requantise_rows(ActivationScale form, int num_chunks, const double* gated, std::uint8_t* codes,
                    std::uint32_t* scales) {
    const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (chunk >= num_chunks) return;
    scales[chunk] = requantise_chunk(gated + chunk * 128, form, codes + chunk * 128);
}

// Rounds the second GEMM's sums to combine rows (or shared rows). Shapes: sums (num_rows, hidden).
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    round_rows(LayerData layer, BatchData<View> batch, const double* sums) {
    Element at;
    if (!own_element(batch.num_rows, layer.shape.hidden, &at)) return;
    const RowInfo& row = batch.rows[at.row];
    const bool is_shared = row.place.slot == kSharedSlot;
    const auto hidden = static_cast<std::size_t>(layer.shape.hidden);
    std::uint16_t* to =
        is_shared ? layer.shared_row + static_cast<std::size_t>(row.token_idx) * hidden
                  : layer.combine + slot_idx(layer.shape, row.token_idx, row.place.slot) * hidden;
    to[at.col] = rounded_output(sums[at.idx], batch.experts[row.batch].down_bias, at.col,
                                routing_weight(layer, row), layer.shape.weight_placement);
}

// The sums with bias and weight, in FP64 and in place.
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    weigh_rows(LayerData layer, BatchData<View> batch, double* sums) {
    Element at;
    if (!own_element(batch.num_rows, layer.shape.hidden, &at)) return;
    const RowInfo& row = batch.rows[at.row];
    sums[at.idx] = output_from_sum(sums[at.idx], batch.experts[row.batch].down_bias, at.col,
                                   static_cast<double>(routing_weight(layer, row)),
                                   layer.shape.weight_placement);
}

// Rows of the plain layer to their slots.
template <class View>
__global__ void __launch_bounds__(kElementThreads)
    store_plain_rows(LayerData layer, BatchData<View> batch, const double* rows) {
    Element at;
    if (!own_element(batch.num_rows, layer.shape.hidden, &at)) return;
    const RowInfo& row = batch.rows[at.row];
    const int slot = row.place.slot == kSharedSlot ? layer.shape.topk : row.place.slot;
    const std::size_t place =
        static_cast<std::size_t>(row.token_idx) * static_cast<std::size_t>(layer.shape.topk + 1) +
        static_cast<std::size_t>(slot);
    layer.plain_rows[place * static_cast<std::size_t>(layer.shape.hidden) +
                     static_cast<std::size_t>(at.col)] = rows[at.idx];
}

// y and the plain sums of every token.
__global__ void __launch_bounds__(kElementThreads) combine_tokens(LayerData layer) {
    Element at;
    if (!own_element(layer.total_tokens, layer.shape.hidden, &at)) return;
    const auto hidden = static_cast<std::size_t>(layer.shape.hidden);
    TokenRows rows;
    rows.rows = reinterpret_cast<const std::uint8_t*>(layer.combine +
                                                      slot_idx(layer.shape, at.row, 0) * hidden);
    rows.row_stride = 2 * hidden;
    rows.experts = layer.topk_idx + slot_idx(layer.shape, at.row, 0);
    if (layer.shared_row != nullptr) {
        rows.shared = layer.shared_row + static_cast<std::size_t>(at.row) * hidden;
    }
    rows.topk = layer.shape.topk;
    rows.num_experts = layer.shape.num_experts;
    layer.y[at.idx] = combined_value(rows, at.col);
    const auto num_rows = static_cast<std::size_t>(layer.shape.topk + 1);
    const double* plain = layer.plain_rows + static_cast<std::size_t>(at.row) * num_rows * hidden;
    double sum = 0.0;
    for (std::size_t slot = 0; slot < num_rows; ++slot) {
        sum += plain[slot * hidden + static_cast<std::size_t>(at.col)];
    }
    layer.plain[at.idx] = sum;
}

}  // namespace gcmoe::reference
