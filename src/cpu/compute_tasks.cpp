#include "cpu/compute_tasks.hpp"

#include <algorithm>

#include "numerics/bf16.hpp"
#include "numerics/swiglu.hpp"

namespace gcmoe::cpu {
namespace {

int groups_of(const CpuLaunch& cpu) {
    return cpu.shape->activation_scale == ActivationScale::kUe8m0K32 ? layout::kGroupsPerChunk : 1;
}

// Room for `rows` rows of `chunks` chunks in the scratch.
void reserve_rows(std::uint32_t rows, std::uint32_t chunks, int groups, Scratch* scratch) {
    scratch->values.resize(std::size_t{rows} * chunks * layout::kChunk);
    scratch->scales.resize(std::size_t{rows} * chunks * static_cast<std::size_t>(groups));
}

ActivationRows rows_of(const Scratch& scratch, std::uint32_t rows, std::uint32_t chunks,
                       int groups) {
    return {scratch.values.data(), scratch.scales.data(), static_cast<int>(rows),
            static_cast<int>(chunks), groups};
}

// Decodes chunk `c` of row `row` into the scratch.
void put_chunk(const std::uint8_t* codes, std::uint32_t scale_word, std::uint32_t row,
               std::uint32_t c, std::uint32_t chunks, int groups, Scratch* scratch) {
    const std::size_t at = std::size_t{row} * chunks + c;
    decode_codes(codes, layout::kChunk, scratch->values.data() + at * layout::kChunk);
    decode_scale_word(scale_word, groups,
                      scratch->scales.data() + at * static_cast<std::size_t>(groups));
}

void load_chunked(const layout::ChunkedRows& from, std::uint32_t place, std::uint32_t rows,
                  std::uint32_t c, layout::KOrder order, int groups, Scratch* scratch) {
    std::uint8_t codes[layout::kChunk];
    for (std::uint32_t row = 0; row < rows; ++row) {
        layout::load_chunk_row(from.chunk(place, c), static_cast<int>(row), order, codes);
        put_chunk(codes, from.scale(place, c)[row], row, c, from.num_chunks, groups, scratch);
    }
}

// Packed rows of one first-GEMM task: gate and up of 128 columns.
constexpr int kTaskRows = 2 * layout::kChunk;

// sums (256 packed rows, rows) of one task -> scratch->other_sums (rows, 128) of activated values.
// bias (256 of the task, packed order) may be null; weight(row) multiplies last.
template <class Weight>
void activate(const Activation& activation, std::uint32_t rows, const float* bias,
              const Weight& weight, Scratch* scratch) {
    scratch->other_sums.resize(std::size_t{rows} * layout::kChunk);
    for (int column = 0; column < layout::kChunk; ++column) {
        const int gate_row = layout::first_gemm_packed_row({column, false});
        const int up_row = layout::first_gemm_packed_row({column, true});
        const float* gate = scratch->sums.data() + static_cast<std::size_t>(gate_row) * rows;
        const float* up = scratch->sums.data() + static_cast<std::size_t>(up_row) * rows;
        for (std::uint32_t row = 0; row < rows; ++row) {
            const float g = bias != nullptr ? gate[row] + bias[gate_row] : gate[row];
            const float u = bias != nullptr ? up[row] + bias[up_row] : up[row];
            scratch
                ->other_sums[row * std::size_t{layout::kChunk} + static_cast<std::size_t>(column)] =
                numerics::swiglu(g, u, activation) * weight(row);
        }
    }
}

void capture_row(const CpuLaunch& cpu, const layout::Origin& origin, std::uint32_t task,
                 const std::uint8_t* codes, std::uint32_t scale_word) {
    const layout::RankMemory& memory = cpu.memory;
    const std::uint64_t at =
        (origin.rank * memory.heap.max_slots() + origin.slot) * memory.inter_chunks + task;
    std::copy_n(codes, layout::kChunk,
                memory.at<std::uint8_t>(memory.local.capture_act) + at * layout::kChunk);
    memory.at<std::uint32_t>(memory.local.capture_act_scale)[at] = scale_word;
}

}  // namespace

void first_gemm(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t expert, std::uint32_t rows,
                std::uint32_t task, const layout::Origin* origins, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::PackedMatrix& matrix = cpu.weights->experts[expert]->first;
    const int groups = groups_of(cpu);
    const auto first_row = static_cast<int>(task) * kTaskRows;
    reserve_rows(rows, memory.hidden_chunks, groups, scratch);
    for (std::uint32_t c = 0; c < memory.hidden_chunks; ++c) {
        load_chunked(memory.ring_x(), place, rows, c, cpu.weights->order, groups, scratch);
    }
    scratch->sums.resize(std::size_t{kTaskRows} * rows);
    multiply_fp4(matrix, first_row, kTaskRows,
                 rows_of(*scratch, rows, memory.hidden_chunks, groups), scratch->sums.data());
    const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + first_row;
    const bool weigh = cpu.shape->weight_placement == WeightPlacement::kBeforeRequantise;
    activate(
        cpu.shape->activation, rows, bias,
        [&](std::uint32_t row) { return weigh ? origins[row].weight : 1.0F; }, scratch);
}

void store_activations(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t rows,
                       std::uint32_t task, const layout::Origin* origins, const Scratch& scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::ChunkedRows act = memory.ring_act();
    std::uint8_t codes[layout::kChunk];
    for (std::uint32_t row = 0; row < rows; ++row) {
        std::uint32_t scale_word = 0;
        requantise_row(scratch.other_sums.data() + std::size_t{row} * layout::kChunk,
                       cpu.shape->activation_scale, codes, &scale_word);
        layout::store_chunk_row(act.chunk(place, task), static_cast<int>(row), cpu.weights->order,
                                codes);
        act.scale(place, task)[row] = scale_word;
        if (memory.local.has_capture != 0) capture_row(cpu, origins[row], task, codes, scale_word);
    }
}

void load_activation_chunk(const CpuLaunch& cpu, std::uint32_t place, std::uint32_t rows,
                           std::uint32_t chunk_idx, Scratch* scratch) {
    const int groups = groups_of(cpu);
    reserve_rows(rows, cpu.memory.inter_chunks, groups, scratch);
    load_chunked(cpu.memory.ring_act(), place, rows, chunk_idx, cpu.weights->order, groups,
                 scratch);
}

void second_gemm(const CpuLaunch& cpu, std::uint32_t expert, std::uint32_t rows, std::uint32_t task,
                 const layout::Origin* origins, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::PackedMatrix& matrix = cpu.weights->experts[expert]->second;
    const auto first_row = static_cast<int>(task * memory.plan.second_columns);
    const int columns =
        std::min(static_cast<int>(memory.plan.second_columns), matrix.rows - first_row);
    scratch->sums.resize(static_cast<std::size_t>(columns) * rows);
    multiply_fp4(matrix, first_row, columns,
                 rows_of(*scratch, rows, memory.inter_chunks, groups_of(cpu)),
                 scratch->sums.data());
    const bool weigh = cpu.shape->weight_placement == WeightPlacement::kAfterSecondGemm;
    for (std::uint32_t row = 0; row < rows; ++row) {
        const layout::Origin& origin = origins[row];
        std::uint16_t* out =
            memory.heap.combine_row(memory.peers.heap(static_cast<int>(origin.rank)), origin.slot);
        for (int i = 0; i < columns; ++i) {
            float z = scratch->sums[static_cast<std::size_t>(i) * rows + row];
            const float bias =
                matrix.bias.empty() ? 0.0F : matrix.bias[static_cast<std::size_t>(first_row + i)];
            if (weigh)
                z = origin.weight * (z + bias);
            else if (!matrix.bias.empty())
                z = z + origin.weight * bias;
            out[first_row + i] = numerics::bf16_from_float(z);
        }
    }
}

void shared_first_gemm(const CpuLaunch& cpu, std::uint32_t first_token, std::uint32_t rows,
                       std::uint32_t task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const int groups = groups_of(cpu);
    reserve_rows(rows, memory.hidden_chunks, groups, scratch);
    for (std::uint32_t row = 0; row < rows; ++row) {
        const std::uint8_t* codes = memory.heap.x_row(memory.own_heap(), first_token + row);
        const std::uint32_t* words = memory.heap.x_scale_row(memory.own_heap(), first_token + row);
        for (std::uint32_t c = 0; c < memory.hidden_chunks; ++c) {
            put_chunk(codes + std::size_t{c} * layout::kChunk, words[c], row, c,
                      memory.hidden_chunks, groups, scratch);
        }
    }
    scratch->sums.resize(std::size_t{kTaskRows} * rows);
    multiply_fp8(cpu.weights->shared_first, static_cast<int>(task) * kTaskRows, kTaskRows,
                 rows_of(*scratch, rows, memory.hidden_chunks, groups), scratch->sums.data());
    activate(
        cpu.shape->activation, rows, nullptr, [](std::uint32_t) { return 1.0F; }, scratch);
    for (std::uint32_t row = 0; row < rows; ++row) {
        const std::uint64_t at = std::uint64_t{first_token + row} * memory.shared_chunks + task;
        requantise_row(scratch->other_sums.data() + std::size_t{row} * layout::kChunk,
                       cpu.shape->activation_scale,
                       memory.at<std::uint8_t>(memory.local.shared_act) + at * layout::kChunk,
                       memory.at<std::uint32_t>(memory.local.shared_act_scale) + at);
    }
}

void shared_second_gemm(const CpuLaunch& cpu, std::uint32_t first_token, std::uint32_t rows,
                        std::uint32_t task, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const layout::PackedFp8Matrix& matrix = cpu.weights->shared_second;
    const int groups = groups_of(cpu);
    reserve_rows(rows, memory.shared_chunks, groups, scratch);
    for (std::uint32_t row = 0; row < rows; ++row) {
        for (std::uint32_t c = 0; c < memory.shared_chunks; ++c) {
            const std::uint64_t at = std::uint64_t{first_token + row} * memory.shared_chunks + c;
            put_chunk(memory.at<std::uint8_t>(memory.local.shared_act) + at * layout::kChunk,
                      memory.at<std::uint32_t>(memory.local.shared_act_scale)[at], row, c,
                      memory.shared_chunks, groups, scratch);
        }
    }
    const auto first_row = static_cast<int>(task * memory.plan.second_columns);
    const int columns =
        std::min(static_cast<int>(memory.plan.second_columns), matrix.rows - first_row);
    scratch->sums.resize(static_cast<std::size_t>(columns) * rows);
    multiply_fp8(matrix, first_row, columns, rows_of(*scratch, rows, memory.shared_chunks, groups),
                 scratch->sums.data());
    auto* out = memory.at<std::uint16_t>(memory.local.shared_row);
    const auto hidden = static_cast<std::size_t>(cpu.shape->hidden);
    for (std::uint32_t row = 0; row < rows; ++row) {
        for (int i = 0; i < columns; ++i) {
            out[(first_token + row) * hidden + static_cast<std::size_t>(first_row + i)] =
                numerics::bf16_from_float(scratch->sums[static_cast<std::size_t>(i) * rows + row]);
        }
    }
}

}  // namespace gcmoe::cpu
