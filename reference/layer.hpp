// The layer on the host, bit-true: the operator's rounding points with FP64 sums and the original
// checkpoint weights. Beside it the plain FP64 layer without any rounding after the inputs.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"
#include "reference/dense.hpp"
#include "reference/element.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::reference {

// One launch of a layer over all ranks.
struct Problem {
    std::string name;  // for messages
    Shape shape;
    WeightSource* weights = nullptr;                  // checkpoint bytes
    const std::vector<RankInputs>* inputs = nullptr;  // (num_ranks), all of one capacity
    bool per_column = false;                          // scale cases: judged per output column
    int num_threads = 2;
};

// A row of a batch: a slot, or a token of the shared expert.
struct Place {
    int rank = 0;  // the token's owner
    int token = 0;
    int slot = 0;  // position in the token's list; kSharedSlot for the shared expert
};
inline constexpr int kSharedSlot = -1;
inline constexpr int kSharedExpert = -1;

// Rows that go through the same expert.
struct Batch {
    int expert = 0;  // global id, or kSharedExpert
    std::vector<Place> rows;
};

// Live slots by expert, in (rank, token, slot) order; then, if the layer has a shared expert, one
// batch for each rank with tokens.
std::vector<Batch> make_batches(const Shape& shape, const std::vector<RankInputs>& inputs);

// A rank's results as plain views: what a judge reads of a backend.
struct RankOutputs {
    int max_tokens = 0;
    // Second-GEMM inputs of the slots that this rank's experts computed, natural K order, at index
    // source rank * max_tokens * topk + token * topk + slot.
    const std::uint8_t* act = nullptr;         // (num_ranks * max_tokens * topk, inter) e4m3
    const std::uint32_t* act_scale = nullptr;  // (num_ranks * max_tokens * topk, inter / 128) words
    const std::uint8_t* combine = nullptr;     // (max_tokens, topk) rows of (hidden) bf16
    std::uint64_t combine_stride = 0;          // bytes
    const std::uint16_t* y = nullptr;          // (num_tokens, hidden) bf16
    std::uint64_t y_stride = 0;                // elements
    const std::uint8_t* shared_act = nullptr;  // (max_tokens, shared_inter) e4m3; null: no shared
    const std::uint32_t* shared_act_scale = nullptr;  // (max_tokens, shared_inter / 128) words
    const std::uint16_t* shared_row = nullptr;        // (max_tokens, hidden) bf16
};

// The same, owned; places of unused slots and tokens hold zeros.
struct RankStages {
    int max_tokens = 0;
    int num_tokens = 0;
    std::vector<std::uint8_t> act;
    std::vector<std::uint32_t> act_scale;
    std::vector<std::uint16_t> combine;  // (max_tokens, topk, hidden)
    std::vector<std::uint8_t> shared_act;
    std::vector<std::uint32_t> shared_act_scale;
    std::vector<std::uint16_t> shared_row;
    std::vector<std::uint16_t> y;  // (num_tokens, hidden)
    std::vector<double> plain;     // (num_tokens, hidden) FP64, no rounding at all

    [[nodiscard]] RankOutputs view(const Shape& shape) const;
};

// Where a slot stands in act and combine.
GCMOE_HD inline std::size_t slot_idx(const Shape& shape, int token, int slot) {
    return static_cast<std::size_t>(token) * static_cast<std::size_t>(shape.topk) +
           static_cast<std::size_t>(slot);
}
GCMOE_HD inline std::size_t capture_idx(const Shape& shape, int max_tokens, const Place& place) {
    return static_cast<std::size_t>(place.rank) * static_cast<std::size_t>(max_tokens) *
               static_cast<std::size_t>(shape.topk) +
           slot_idx(shape, place.token, place.slot);
}

// The token row of a place, and the routing weight of its slot (1 for the shared expert).
CodedRow input_row(const Problem& problem, const Place& place);
float routing_weight(const Problem& problem, const Place& place);

// x of a batch in FP64, and the weights that go onto the activations (1 if they come later).
// Shapes: x (rows, hidden), weight (rows).
void load_batch(const Problem& problem, const Batch& batch, Matrix* x, std::vector<double>* weight);

// One row to E4M3, per 128 columns FP32 or per 32 columns UE8M0. Shapes: values (cols), codes
// (cols), scales (cols / 128).
void requantise_row(const double* values, int cols, ActivationScale form, std::uint8_t* codes,
                    std::uint32_t* scales);

// Hands out an expert's matrices; WeightSource itself takes one caller at a time.
class ExpertReader {
  public:
    explicit ExpertReader(WeightSource* source) : source_(source) {}
    // Calls work(const ExpertMatrices<View>&) with the expert's or the shared expert's matrices.
    template <class Work>
    Status with(int expert, const Work& work) {
        if (expert == kSharedExpert) {
            SharedExpertBytes bytes;
            GCMOE_RETURN_IF_ERROR(read_shared(&bytes));
            work(ExpertMatrices<Fp8View>{bytes.gate, bytes.up, bytes.down});
        } else {
            ExpertBytes bytes;
            GCMOE_RETURN_IF_ERROR(read(expert, &bytes));
            work(ExpertMatrices<Mxfp4View>{bytes.gate, bytes.up, bytes.down, bytes.gate_bias,
                                           bytes.up_bias, bytes.down_bias});
        }
        return {};
    }

  private:
    Status read(int expert, ExpertBytes* bytes);
    Status read_shared(SharedExpertBytes* bytes);

    WeightSource* source_;
    std::mutex mutex_;
};

// The whole layer. Errors: those of the weight source.
Status evaluate_layer(const Problem& problem, std::vector<RankStages>* out);

}  // namespace gcmoe::reference
