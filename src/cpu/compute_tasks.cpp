#include "cpu/compute_tasks.hpp"

#include <algorithm>

#include "cpu/row_kernels.hpp"

namespace gcmoe::cpu {
namespace {

// Packed rows of one first-GEMM task: gate and up of 128 columns.
constexpr int kTaskRows = 2 * layout::kChunk;

// Decoded rows in the scratch: (chunks, rows) pieces of 128 values with their scales.
class DecodedRows {
  public:
    DecodedRows(const CpuLaunch& cpu, std::uint32_t rows, std::uint32_t chunks, Scratch* scratch)
        : rows_(rows), chunks_(chunks), format_(cpu.shape->activation_scale), scratch_(scratch) {
        scratch->values.resize(std::size_t{rows} * chunks * layout::kChunk);
        scratch->scales.resize(std::size_t{rows} * chunks * kScalesPerChunk);
    }
    void put(std::uint32_t row, std::uint32_t chunk_idx, const CodeWords& codes,
             std::uint32_t scale_word) {
        const std::size_t at = std::size_t{chunk_idx} * rows_ + row;
        decode_codes(codes, scratch_->values.data() + at * layout::kChunk);
        decode_scale_word(scale_word, format_, scratch_->scales.data() + at * kScalesPerChunk);
    }
    // codes: (128) in natural K order.
    void put(std::uint32_t row, std::uint32_t chunk_idx, const std::uint8_t* codes,
             std::uint32_t scale_word) {
        CodeWords words;
        load_code_words(codes, &words);
        put(row, chunk_idx, words, scale_word);
    }
    // One chunk of a block out of the ring, which holds rows in the order of the packed weights.
    void put_chunk(const layout::ChunkedRows& from, std::uint32_t place, std::uint32_t chunk_idx) {
        CodeWords words;
        for (std::uint32_t row = 0; row < rows_; ++row) {
            load_code_words(from.chunk(place, chunk_idx), static_cast<int>(row), &words);
            put(row, chunk_idx, words, from.scale(place, chunk_idx)[row]);
        }
    }
    [[nodiscard]] ActivationRows view() const {
        return {scratch_->values.data(), scratch_->scales.data(), static_cast<int>(rows_),
                static_cast<int>(chunks_)};
    }

  private:
    std::uint32_t rows_;
    std::uint32_t chunks_;
    ActivationScale format_;
    Scratch* scratch_;
};

// Row `row` of the sums of a task with so many packed rows.
float* sums_of(Scratch* scratch, std::uint32_t row, int packed_rows) {
    return scratch->sums.data() + std::size_t{row} * static_cast<std::size_t>(packed_rows);
}

// scratch->sums (rows, 256) of one task -> scratch->activated (rows, 128).
// bias: (256) of the task in packed order, may be null; weight_of(row) multiplies last.
template <class WeightOf>
void activate(const Activation& activation, std::uint32_t rows, const float* bias,
              const WeightOf& weight_of, Scratch* scratch) {
    scratch->activated.resize(std::size_t{rows} * layout::kChunk);
    for (std::uint32_t row = 0; row < rows; ++row) {
        activate_row({sums_of(scratch, row, kTaskRows), bias, weight_of(row)}, activation,
                     scratch->activated.data() + std::size_t{row} * layout::kChunk);
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
        rows.put_chunk(memory.ring_x(), task.place, c);
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
    rows.put_chunk(cpu.memory.ring_act(), task.place, chunk_idx);
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
        store_result_row(sums_of(scratch, row, columns), {bias, origin.weight, weigh},
                         static_cast<std::size_t>(columns),
                         memory.heap.combine_row(heap, origin.slot) + first_row);
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
        store_result_row(sums_of(scratch, row, columns), {}, static_cast<std::size_t>(columns),
                         out);
    }
}

}  // namespace gcmoe::cpu
