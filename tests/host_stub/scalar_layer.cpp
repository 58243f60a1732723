#include "host_stub/scalar_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/math.hpp"
#include "layout/packed_weights.hpp"
#include "numerics/bf16.hpp"
#include "numerics/bits.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/quantise.hpp"
#include "numerics/swiglu.hpp"
#include "numerics/ue8m0.hpp"

namespace gcmoe::host_stub {
namespace {

using layout::kChunkK;
using layout::kGroupsPerChunk;
using layout::kScaleGroupK;
using layout::PackedFp8Matrix;
using layout::PackedMatrix;
using reference::Batch;
using reference::Place;
using reference::RankInputs;
using reference::RankStages;

// Rows of codes with their scale words, as an expert's GEMM reads them.
struct CodedRows {
    std::vector<const std::uint8_t*> codes;   // each (128 * chunks)
    std::vector<const std::uint32_t*> words;  // each (chunks)
    int chunks = 0;
    ActivationScale form = ActivationScale::kFp32K128;

    [[nodiscard]] float scale(std::size_t row, int chunk, int group) const {
        const std::uint32_t word = words[row][chunk];
        if (form == ActivationScale::kFp32K128) return numerics::bits_to_float(word);
        return numerics::ue8m0_to_float(static_cast<std::uint8_t>(word >> (8 * group)));
    }
};

// A chunk of one weight row, and what its steps are multiplied by.
struct WeightChunk {
    float values[kChunkK];
    float factors[kGroupsPerChunk];
    bool has_factors = false;
    int steps = 1;  // parts of the chunk with a promotion of their own
};

void read_chunk(const PackedMatrix& matrix, int row, int chunk, WeightChunk* out) {
    layout::decode_fp4_tile_row(matrix.tile(row / layout::kTileRows, chunk),
                                row % layout::kTileRows, matrix.order, out->values);
    out->has_factors = matrix.form == PackedMatrix::DecodeForm::kChunkFactor;
    const float factor = out->has_factors ? matrix.factor(row, chunk) : 1.0F;
    std::fill_n(out->factors, kGroupsPerChunk, factor);
}

void read_chunk(const PackedFp8Matrix& matrix, int row, int chunk, WeightChunk* out) {
    layout::decode_fp8_tile_row(matrix.tile(row / layout::kTileRows, chunk),
                                row % layout::kTileRows, matrix.order, out->values);
    out->has_factors = true;
    out->steps = matrix.scale_groups_per_chunk;
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        out->factors[g] = matrix.scale(row, chunk, out->steps == 1 ? 0 : g);
    }
}

float row_factor(const PackedMatrix& matrix, int row) {
    return matrix.form == PackedMatrix::DecodeForm::kRowFactor ? matrix.factor(row, 0) : 1.0F;
}
float row_factor(const PackedFp8Matrix&, int) { return 1.0F; }

float add_chunk(const WeightChunk& weight, const CodedRows& rows, std::size_t row, int chunk,
                float sum) {
    const int steps = rows.form == ActivationScale::kUe8m0K32 ? kGroupsPerChunk : weight.steps;
    const int width = kChunkK / steps;
    const std::uint8_t* codes = rows.codes[row] + chunk * kChunkK;
    for (int step = 0; step < steps; ++step) {
        double exact = 0.0;
        for (int k = step * width; k < (step + 1) * width; ++k) {
            exact += static_cast<double>(weight.values[k]) *
                     static_cast<double>(numerics::kE4m3Values[codes[k]]);
        }
        const auto part = static_cast<float>(exact);
        const float scale = rows.scale(row, chunk, step);
        sum = weight.has_factors ? std::fma(part * scale, weight.factors[step], sum)
                                 : std::fma(part, scale, sum);
    }
    return sum;
}

// Sums of one packed weight row with all rows, times the row's factor.
template <class Matrix>
std::vector<float> multiply_row(const Matrix& matrix, int packed_row, const CodedRows& rows) {
    std::vector<float> sums(rows.codes.size(), 0.0F);
    WeightChunk weight;
    for (int chunk = 0; chunk < rows.chunks; ++chunk) {
        read_chunk(matrix, packed_row, chunk, &weight);
        for (std::size_t row = 0; row < sums.size(); ++row) {
            sums[row] = add_chunk(weight, rows, row, chunk, sums[row]);
        }
    }
    for (float& sum : sums) sum *= row_factor(matrix, packed_row);
    return sums;
}

float bias_of(const PackedMatrix& matrix, int packed_row) {
    return matrix.bias.empty() ? 0.0F : matrix.bias[size_of(packed_row)];
}
float bias_of(const PackedFp8Matrix&, int) { return 0.0F; }

// First GEMM, SwiGLU and weight of all rows. Shapes: weight (rows), result (rows, inter).
template <class Matrix>
std::vector<float> gated_rows(const Matrix& first, const CodedRows& rows,
                              const Activation& activation, const std::vector<float>& weight) {
    const int inter = first.rows / 2;
    std::vector<float> gated(weight.size() * size_of(inter));
    for (int column = 0; column < inter; ++column) {
        const int gate_row = layout::first_gemm_packed_row({column, false});
        const int up_row = layout::first_gemm_packed_row({column, true});
        const std::vector<float> gate = multiply_row(first, gate_row, rows);
        const std::vector<float> up = multiply_row(first, up_row, rows);
        for (std::size_t row = 0; row < weight.size(); ++row) {
            gated[row * size_of(inter) + size_of(column)] =
                numerics::swiglu(gate[row] + bias_of(first, gate_row),
                                 up[row] + bias_of(first, up_row), activation) *
                weight[row];
        }
    }
    return gated;
}

// One row to codes and scale words.
void requantise(const float* values, int cols, ActivationScale form, std::uint8_t* codes,
                std::uint32_t* words) {
    for (int chunk = 0; chunk < cols / kChunkK; ++chunk) {
        const int first = chunk * kChunkK;
        if (form == ActivationScale::kFp32K128) {
            float scale = 0.0F;
            numerics::quantise_e4m3_fp32(values + first, kChunkK, codes + first, &scale);
            words[chunk] = numerics::float_to_bits(scale);
            continue;
        }
        words[chunk] = 0;
        for (int g = 0; g < kGroupsPerChunk; ++g) {
            const int at = first + g * kScaleGroupK;
            std::uint8_t code = 0;
            numerics::quantise_e4m3_ue8m0(values + at, kScaleGroupK, codes + at, &code);
            words[chunk] |= std::uint32_t{code} << (8 * g);
        }
    }
}

class ScalarLayer {
  public:
    ScalarLayer(const Shape& shape, const std::vector<RankInputs>& inputs)
        : shape_(shape), inputs_(inputs), hidden_(size_of(shape.hidden)) {
        for (const RankInputs& own : inputs) stages_.push_back(poisoned(own));
    }
    void add_routed(const Batch& batch, const layout::PackedExpert& expert) {
        const bool before = shape_.weight_placement == WeightPlacement::kBeforeRequantise;
        const std::vector<float> weights = weights_of(batch);
        const std::vector<float> ones(weights.size(), 1.0F);
        const std::vector<float> gated =
            gated_rows(expert.first, inputs_of(batch), shape_.activation, before ? weights : ones);
        const CodedRows act = store_activations(batch, gated);
        for (int column = 0; column < shape_.hidden; ++column) {
            const std::vector<float> sums = multiply_row(expert.second, column, act);
            const float bias = bias_of(expert.second, column);
            for (std::size_t row = 0; row < sums.size(); ++row) {
                float z = sums[row];
                if (!before) {
                    z = weights[row] * (z + bias);
                } else if (shape_.has_bias) {
                    z = z + weights[row] * bias;
                }
                RankStages& owner = stages_[size_of(batch.rows[row].rank)];
                owner.combine[slot_of(batch.rows[row]) * hidden_ + size_of(column)] =
                    numerics::bf16_from_float(z);
            }
        }
    }
    void add_shared(const Batch& batch, const PackedStorage& storage) {
        const std::vector<float> ones(batch.rows.size(), 1.0F);
        const std::vector<float> gated =
            gated_rows(storage.shared_first, inputs_of(batch), shape_.activation, ones);
        const CodedRows act = store_activations(batch, gated);
        for (int column = 0; column < shape_.hidden; ++column) {
            const std::vector<float> sums = multiply_row(storage.shared_second, column, act);
            for (std::size_t row = 0; row < sums.size(); ++row) {
                const Place& place = batch.rows[row];
                stages_[size_of(place.rank)]
                    .shared_row[size_of(place.token) * hidden_ + size_of(column)] =
                    numerics::bf16_from_float(sums[row]);
            }
        }
    }
    // y of all ranks out of the combine and shared rows.
    std::vector<RankStages> combine() {
        for (std::size_t rank = 0; rank < stages_.size(); ++rank) {
            for (int token = 0; token < inputs_[rank].num_tokens; ++token) {
                for (std::size_t column = 0; column < hidden_; ++column) {
                    stages_[rank].y.push_back(combined(static_cast<int>(rank), token, column));
                }
            }
        }
        return std::move(stages_);
    }

  private:
    [[nodiscard]] RankStages poisoned(const RankInputs& own) const {
        RankStages out;
        out.max_tokens = own.capacity;
        out.num_tokens = own.num_tokens;
        const std::size_t slots = size_of(own.capacity) * size_of(shape_.topk);
        const std::size_t rows = slots * inputs_.size();
        out.act.assign(rows * size_of(shape_.inter), 0xFF);
        out.act_scale.assign(rows * size_of(shape_.inter / kChunkK), 0xFFFFFFFFU);
        out.combine.assign(slots * hidden_, 0xFFFF);
        const std::size_t tokens = size_of(own.capacity);
        out.shared_act.assign(tokens * size_of(shape_.shared_inter), 0xFF);
        out.shared_act_scale.assign(tokens * size_of(shape_.shared_inter / kChunkK), 0xFFFFFFFFU);
        out.shared_row.assign(shape_.shared_inter > 0 ? tokens * hidden_ : 0, 0xFFFF);
        return out;
    }
    [[nodiscard]] std::size_t slot_of(const Place& place) const {
        return reference::slot_idx(shape_, place.token, place.slot);
    }
    [[nodiscard]] std::vector<float> weights_of(const Batch& batch) const {
        std::vector<float> weights;
        for (const Place& place : batch.rows) {
            weights.push_back(inputs_[size_of(place.rank)].topk_weight[slot_of(place)]);
        }
        return weights;
    }
    [[nodiscard]] CodedRows inputs_of(const Batch& batch) const {
        CodedRows rows;
        rows.chunks = shape_.hidden / kChunkK;
        rows.form = shape_.activation_scale;
        for (const Place& place : batch.rows) {
            const RankInputs& own = inputs_[size_of(place.rank)];
            rows.codes.push_back(own.x.data() + size_of(place.token) * hidden_);
            rows.words.push_back(own.x_scale.data() + size_of(place.token) * size_of(rows.chunks));
        }
        return rows;
    }
    // Requantises a batch's rows to where their rank keeps them; the result points there.
    CodedRows store_activations(const Batch& batch, const std::vector<float>& gated) {
        const bool shared = batch.expert == reference::kSharedExpert;
        const int inter = shared ? shape_.shared_inter : shape_.inter;
        CodedRows rows;
        rows.chunks = inter / kChunkK;
        rows.form = shape_.activation_scale;
        for (std::size_t row = 0; row < batch.rows.size(); ++row) {
            const Place& place = batch.rows[row];
            const int rank = shared ? place.rank : batch.expert / shape_.experts_per_rank();
            RankStages& to = stages_[size_of(rank)];
            const std::size_t at = shared ? size_of(place.token)
                                          : reference::capture_idx(shape_, to.max_tokens, place);
            std::uint8_t* codes = (shared ? to.shared_act : to.act).data() + at * size_of(inter);
            std::uint32_t* words =
                (shared ? to.shared_act_scale : to.act_scale).data() + at * size_of(rows.chunks);
            requantise(gated.data() + row * size_of(inter), inter, rows.form, codes, words);
            rows.codes.push_back(codes);
            rows.words.push_back(words);
        }
        return rows;
    }
    [[nodiscard]] std::uint16_t combined(int rank, int token, std::size_t column) const {
        const RankStages& own = stages_[size_of(rank)];
        float sum = 0.0F;
        for (int slot = 0; slot < shape_.topk; ++slot) {
            const RankInputs& inputs = inputs_[size_of(rank)];
            if (!reference::slot_is_live(shape_,
                                         reference::expert_of(shape_, inputs, token, slot))) {
                continue;
            }
            const std::size_t at = reference::slot_idx(shape_, token, slot);
            sum += numerics::bf16_to_float(own.combine[at * hidden_ + column]);
        }
        if (shape_.shared_inter > 0) {
            sum += numerics::bf16_to_float(own.shared_row[size_of(token) * hidden_ + column]);
        }
        return numerics::bf16_from_float(sum);
    }

    const Shape& shape_;
    const std::vector<RankInputs>& inputs_;
    std::size_t hidden_;
    std::vector<RankStages> stages_;
};

}  // namespace

std::vector<RankStages> scalar_layer(
    const Shape& shape, const std::vector<std::shared_ptr<const PackedWeights>>& weights,
    const std::vector<RankInputs>& inputs) {
    ScalarLayer layer(shape, inputs);
    for (const Batch& batch : reference::make_batches(shape, inputs)) {
        if (batch.expert == reference::kSharedExpert) {
            layer.add_shared(batch, weights[size_of(batch.rows[0].rank)]->storage());
            continue;
        }
        const int rank = batch.expert / shape.experts_per_rank();
        const int local_idx = batch.expert % shape.experts_per_rank();
        layer.add_routed(batch, *weights[size_of(rank)]->storage().experts[size_of(local_idx)]);
    }
    return layer.combine();
}

}  // namespace gcmoe::host_stub
