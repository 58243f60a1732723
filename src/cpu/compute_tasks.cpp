#include "cpu/compute_tasks.hpp"

#include <algorithm>

#include "numerics/bf16.hpp"
#include "numerics/swiglu.hpp"

namespace gcmoe::cpu {
namespace {

// Packed rows of one first-GEMM task: gate and up of 128 columns.
constexpr int kTaskRows = 2 * layout::kChunk;

// Decoded rows in the scratch: (rows, chunks) pieces of 128 values with their scales.
class DecodedRows {
  public:
    DecodedRows(const CpuLaunch& cpu, std::uint32_t rows, std::uint32_t chunks, Scratch* scratch)
        : rows_(rows), chunks_(chunks), scratch_(scratch) {
        const bool k32 = cpu.shape->activation_scale == ActivationScale::kUe8m0K32;
        groups_ = k32 ? layout::kGroupsPerChunk : 1;
        scratch->values.resize(std::size_t{rows} * chunks * layout::kChunk);
        scratch->scales.resize(std::size_t{rows} * chunks * static_cast<std::size_t>(groups_));
    }
    // codes: (128) in natural K order.
    void put(std::uint32_t row, std::uint32_t chunk_idx, const std::uint8_t* codes,
             std::uint32_t scale_word) {
        const std::size_t at = std::size_t{row} * chunks_ + chunk_idx;
        decode_codes(codes, layout::kChunk, scratch_->values.data() + at * layout::kChunk);
        decode_scale_word(scale_word, groups_,
                          scratch_->scales.data() + at * static_cast<std::size_t>(groups_));
    }
    // One chunk of a block out of the ring.
    void put_chunk(const layout::ChunkedRows& from, std::uint32_t place, std::uint32_t chunk_idx,
                   layout::KOrder order) {
        std::uint8_t codes[layout::kChunk];
        for (std::uint32_t row = 0; row < rows_; ++row) {
            layout::load_chunk_row(from.chunk(place, chunk_idx), static_cast<int>(row), order,
                                   codes);
            put(row, chunk_idx, codes, from.scale(place, chunk_idx)[row]);
        }
    }
    [[nodiscard]] ActivationRows view() const {
        return {scratch_->values.data(), scratch_->scales.data(), static_cast<int>(rows_),
                static_cast<int>(chunks_), groups_};
    }

  private:
    std::uint32_t rows_;
    std::uint32_t chunks_;
    int groups_ = 1;
    Scratch* scratch_;
};

// scratch->sums (256 packed rows, rows) of one task -> scratch->activated (rows, 128).
// bias: (256) of the task in packed order, may be null; weight_of(row) multiplies last.
template <class WeightOf>
void activate(const Activation& activation, std::uint32_t rows, const float* bias,
              const WeightOf& weight_of, Scratch* scratch) {
    scratch->activated.resize(std::size_t{rows} * layout::kChunk);
    for (int column = 0; column < layout::kChunk; ++column) {
        const int gate_row = layout::first_gemm_packed_row({column, false});
        const int up_row = layout::first_gemm_packed_row({column, true});
        const float* gate = scratch->sums.data() + static_cast<std::size_t>(gate_row) * rows;
        const float* up = scratch->sums.data() + static_cast<std::size_t>(up_row) * rows;
        for (std::uint32_t row = 0; row < rows; ++row) {
            const float g = bias != nullptr ? gate[row] + bias[gate_row] : gate[row];
            const float u = bias != nullptr ? up[row] + bias[up_row] : up[row];
            const std::size_t at =
                row * std::size_t{layout::kChunk} + static_cast<std::size_t>(column);
            scratch->activated[at] = numerics::swiglu(g, u, activation) * weight_of(row);
        }
    }
}

// Keeps a row's requantised chunk for the judge: [source rank][slot].
void capture_row(const CpuLaunch& cpu, const layout::Origin& origin, std::uint32_t chunk_idx,
                 const std::uint8_t* codes, std::uint32_t scale_word) {
    const layout::RankMemory& memory = cpu.memory;
    const std::uint64_t row = origin.rank * memory.heap.max_slots() + origin.slot;
    const std::uint64_t at = row * memory.inter_chunks + chunk_idx;
    std::copy_n(codes, layout::kChunk,
                memory.at<std::uint8_t>(memory.local.capture_act) + at * layout::kChunk);
    memory.at<std::uint32_t>(memory.local.capture_act_scale)[at] = scale_word;
}

// Columns of second-GEMM task `task`; the last one may be narrower.
int columns_of(const layout::PlanMemory& plan, int hidden, std::uint32_t task) {
    const auto first = static_cast<int>(task * plan.second_columns);
    return std::min(static_cast<int>(plan.second_columns), hidden - first);
}

}  // namespace

void first_gemm(const CpuLaunch& cpu, const BlockTask& task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::PackedMatrix& matrix = cpu.weights->experts[task.expert]->first;
    const auto first_row = static_cast<int>(task.task) * kTaskRows;
    DecodedRows rows(cpu, task.rows, memory.hidden_chunks, scratch);
    for (std::uint32_t c = 0; c < memory.hidden_chunks; ++c) {
        rows.put_chunk(memory.ring_x(), task.place, c, cpu.weights->order);
    }
    scratch->sums.resize(std::size_t{kTaskRows} * task.rows);
    multiply_fp4(matrix, first_row, kTaskRows, rows.view(), scratch->sums.data());
    const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + first_row;
    const bool weigh = cpu.shape->weight_placement == WeightPlacement::kBeforeRequantise;
    const auto weight_of = [&](std::uint32_t row) {
        return weigh ? task.origins[row].weight : 1.0F;
    };
    activate(cpu.shape->activation, task.rows, bias, weight_of, scratch);
}

void store_activations(const CpuLaunch& cpu, const BlockTask& task, const Scratch& scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::ChunkedRows act = memory.ring_act();
    std::uint8_t codes[layout::kChunk];
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        std::uint32_t scale_word = 0;
        requantise_row(scratch.activated.data() + std::size_t{row} * layout::kChunk,
                       cpu.shape->activation_scale, codes, &scale_word);
        layout::store_chunk_row(act.chunk(task.place, task.task), static_cast<int>(row),
                                cpu.weights->order, codes);
        act.scale(task.place, task.task)[row] = scale_word;
        if (memory.local.has_capture != 0) {
            capture_row(cpu, task.origins[row], task.task, codes, scale_word);
        }
    }
}

void load_activation_chunk(const CpuLaunch& cpu, const BlockTask& task, std::uint32_t chunk_idx,
                           Scratch* scratch) {
    DecodedRows rows(cpu, task.rows, cpu.memory.inter_chunks, scratch);
    rows.put_chunk(cpu.memory.ring_act(), task.place, chunk_idx, cpu.weights->order);
}

void second_gemm(const CpuLaunch& cpu, const BlockTask& task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::PackedMatrix& matrix = cpu.weights->experts[task.expert]->second;
    const auto first_row = static_cast<int>(task.task * memory.plan.second_columns);
    const int columns = columns_of(memory.plan, cpu.shape->hidden, task.task);
    const DecodedRows rows(cpu, task.rows, memory.inter_chunks, scratch);
    scratch->sums.resize(static_cast<std::size_t>(columns) * task.rows);
    multiply_fp4(matrix, first_row, columns, rows.view(), scratch->sums.data());
    const bool weigh = cpu.shape->weight_placement == WeightPlacement::kAfterSecondGemm;
    const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + first_row;
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        const layout::Origin& origin = task.origins[row];
        std::uint8_t* heap = memory.peers.heap(static_cast<int>(origin.rank));
        std::uint16_t* out = memory.heap.combine_row(heap, origin.slot) + first_row;
        for (int i = 0; i < columns; ++i) {
            float z = scratch->sums[static_cast<std::size_t>(i) * task.rows + row];
            if (weigh) {
                z = origin.weight * (bias != nullptr ? z + bias[i] : z);
            } else if (bias != nullptr) {
                z = z + origin.weight * bias[i];
            }
            out[i] = numerics::bf16_from_float(z);
        }
    }
}

void shared_first_gemm(const CpuLaunch& cpu, const SharedTask& task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    DecodedRows rows(cpu, task.rows, memory.hidden_chunks, scratch);
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        const std::uint32_t token = task.first_token + row;
        const std::uint8_t* codes = memory.heap.x_row(memory.own_heap(), token);
        const std::uint32_t* words = memory.heap.x_scale_row(memory.own_heap(), token);
        for (std::uint32_t c = 0; c < memory.hidden_chunks; ++c) {
            rows.put(row, c, codes + std::size_t{c} * layout::kChunk, words[c]);
        }
    }
    scratch->sums.resize(std::size_t{kTaskRows} * task.rows);
    multiply_fp8(cpu.weights->shared_first, static_cast<int>(task.task) * kTaskRows, kTaskRows,
                 rows.view(), scratch->sums.data());
    const auto no_weight = [](std::uint32_t) { return 1.0F; };
    activate(cpu.shape->activation, task.rows, nullptr, no_weight, scratch);
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        const std::uint64_t at =
            std::uint64_t{task.first_token + row} * memory.shared_chunks + task.task;
        requantise_row(scratch->activated.data() + std::size_t{row} * layout::kChunk,
                       cpu.shape->activation_scale,
                       memory.at<std::uint8_t>(memory.local.shared_act) + at * layout::kChunk,
                       memory.at<std::uint32_t>(memory.local.shared_act_scale) + at);
    }
}

void shared_second_gemm(const CpuLaunch& cpu, const SharedTask& task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    DecodedRows rows(cpu, task.rows, memory.shared_chunks, scratch);
    const auto* codes = memory.at<std::uint8_t>(memory.local.shared_act);
    const auto* words = memory.at<std::uint32_t>(memory.local.shared_act_scale);
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        for (std::uint32_t c = 0; c < memory.shared_chunks; ++c) {
            const std::uint64_t at =
                std::uint64_t{task.first_token + row} * memory.shared_chunks + c;
            rows.put(row, c, codes + at * layout::kChunk, words[at]);
        }
    }
    const auto first_row = static_cast<int>(task.task * memory.plan.second_columns);
    const int columns = columns_of(memory.plan, cpu.shape->hidden, task.task);
    scratch->sums.resize(static_cast<std::size_t>(columns) * task.rows);
    multiply_fp8(cpu.weights->shared_second, first_row, columns, rows.view(), scratch->sums.data());
    const auto hidden = static_cast<std::size_t>(cpu.shape->hidden);
    for (std::uint32_t row = 0; row < task.rows; ++row) {
        std::uint16_t* out = memory.at<std::uint16_t>(memory.local.shared_row) +
                             (task.first_token + row) * hidden + first_row;
        for (int i = 0; i < columns; ++i) {
            out[i] = numerics::bf16_from_float(
                scratch->sums[static_cast<std::size_t>(i) * task.rows + row]);
        }
    }
}

}  // namespace gcmoe::cpu
