#include "reference/layer.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/math.hpp"
#include "reference/parallel.hpp"

namespace gcmoe::reference {
namespace {

// FP64 combine rows of one rank, (num_tokens, topk + 1, hidden); the shared expert's comes last.
using PlainRows = std::vector<double>;

// Where the batches leave what they have found; both (num_ranks).
struct Results {
    std::vector<RankStages>* stages;
    std::vector<PlainRows>* plain;
};

void allocate(const Problem& problem, std::vector<RankStages>* stages,
              std::vector<PlainRows>* plain) {
    const Shape& shape = problem.shape;
    const std::size_t hidden = size_of(shape.hidden);
    for (const RankInputs& inputs : *problem.inputs) {
        RankStages stage;
        stage.max_tokens = inputs.capacity;
        stage.num_tokens = inputs.num_tokens;
        const std::size_t tokens = size_of(inputs.capacity);
        const std::size_t slots = tokens * size_of(shape.topk);
        const std::size_t places = size_of(shape.num_ranks) * slots;
        stage.act.resize(places * size_of(shape.inter));
        stage.act_scale.resize(places * size_of(shape.inter / 128));
        stage.combine.resize(slots * hidden);
        stage.shared_act.resize(tokens * size_of(shape.shared_inter));
        stage.shared_act_scale.resize(tokens * size_of(shape.shared_inter / 128));
        stage.shared_row.resize(shape.shared_inter > 0 ? tokens * hidden : 0);
        stage.y.resize(size_of(inputs.num_tokens) * hidden);
        stage.plain.resize(size_of(inputs.num_tokens) * hidden);
        stages->push_back(std::move(stage));
        plain->emplace_back(size_of(inputs.num_tokens) * size_of(shape.topk + 1) * hidden);
    }
}

// Where the codes and scales of a batch row go.
void act_place(const Problem& problem, int expert, const Place& place,
               std::vector<RankStages>* stages, std::uint8_t** codes, std::uint32_t** scales) {
    const Shape& shape = problem.shape;
    if (expert == kSharedExpert) {
        RankStages& stage = (*stages)[size_of(place.rank)];
        *codes = stage.shared_act.data() + size_of(place.token) * size_of(shape.shared_inter);
        *scales = stage.shared_act_scale.data() +
                  size_of(place.token) * size_of(shape.shared_inter / 128);
        return;
    }
    RankStages& owner = (*stages)[size_of(expert / shape.experts_per_rank())];
    const std::size_t idx = capture_idx(shape, owner.max_tokens, place);
    *codes = owner.act.data() + idx * size_of(shape.inter);
    *scales = owner.act_scale.data() + idx * size_of(shape.inter / 128);
}

// Requantises the activations of a batch, stores them, and gives back what the codes stand for.
Matrix requantise_batch(const Problem& problem, const Batch& batch, const Matrix& gated,
                        std::vector<RankStages>* stages) {
    const ActivationScale form = problem.shape.activation_scale;
    const int cols = static_cast<int>(gated.cols);
    Matrix act(gated.rows, gated.cols);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        std::uint8_t* codes = nullptr;
        std::uint32_t* scales = nullptr;
        act_place(problem, batch.expert, batch.rows[i], stages, &codes, &scales);
        requantise_row(gated.row(i), cols, form, codes, scales);
        decode_row(CodedRow{codes, scales, form}, cols, act.row(i));
    }
    return act;
}

// Combine rows (or shared rows) of a batch from the second GEMM's sums, rounded and plain.
void store_rows(const Problem& problem, const Batch& batch, const float* down_bias,
                const Matrix& sums, const Matrix& plain_sums, const Results& results) {
    const Shape& shape = problem.shape;
    const std::size_t hidden = size_of(shape.hidden);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const Place& place = batch.rows[i];
        RankStages& stage = (*results.stages)[size_of(place.rank)];
        const bool is_shared = place.slot == kSharedSlot;
        const int last_slot = is_shared ? shape.topk : place.slot;
        std::uint16_t* row =
            is_shared ? stage.shared_row.data() + size_of(place.token) * hidden
                      : stage.combine.data() + slot_idx(shape, place.token, place.slot) * hidden;
        double* plain_row =
            (*results.plain)[size_of(place.rank)].data() +
            (size_of(place.token) * size_of(shape.topk + 1) + size_of(last_slot)) * hidden;
        const float weight = routing_weight(problem, place);
        for (int h = 0; h < shape.hidden; ++h) {
            row[h] = rounded_output(sums.row(i)[h], down_bias, h, weight, shape.weight_placement);
            plain_row[h] = output_from_sum(plain_sums.row(i)[h], down_bias, h,
                                           static_cast<double>(weight), shape.weight_placement);
        }
    }
}

template <class View>
void evaluate_batch(const Problem& problem, const Batch& batch, const ExpertMatrices<View>& expert,
                    const Results& results) {
    Matrix x;
    std::vector<double> weight;
    load_batch(problem, batch, &x, &weight);
    Matrix gated;
    gated_batch(expert, problem.shape.activation, x, weight, &gated);
    const Matrix act = requantise_batch(problem, batch, gated, results.stages);
    Matrix sums;
    Matrix plain_sums;
    down_batch(expert, act, &sums);
    down_batch(expert, gated, &plain_sums);
    store_rows(problem, batch, expert.down_bias, sums, plain_sums, results);
}

// Sums the rows of every token of a rank. plain: unused slots hold zeros.
void combine_rank(const Problem& problem, const RankInputs& inputs, const PlainRows& plain,
                  RankStages* stage) {
    const Shape& shape = problem.shape;
    const std::size_t hidden = size_of(shape.hidden);
    const std::size_t topk = size_of(shape.topk);
    for (std::size_t token = 0; token < size_of(inputs.num_tokens); ++token) {
        TokenRows rows;
        rows.rows =
            reinterpret_cast<const std::uint8_t*>(stage->combine.data() + token * topk * hidden);
        rows.row_stride = 2 * hidden;
        rows.experts = inputs.topk_idx.data() + token * topk;
        rows.shared = shape.shared_inter > 0 ? stage->shared_row.data() + token * hidden : nullptr;
        rows.topk = shape.topk;
        rows.num_experts = shape.num_experts;
        for (std::size_t h = 0; h < hidden; ++h) {
            stage->y[token * hidden + h] = combined_value(rows, static_cast<int>(h));
            double sum = 0.0;
            for (std::size_t slot = 0; slot <= topk; ++slot) {
                sum += plain[(token * (topk + 1) + slot) * hidden + h];
            }
            stage->plain[token * hidden + h] = sum;
        }
    }
}

}  // namespace

std::vector<Batch> make_batches(const Shape& shape, const std::vector<RankInputs>& inputs) {
    std::vector<Batch> by_expert(size_of(shape.num_experts));
    for (int rank = 0; rank < static_cast<int>(inputs.size()); ++rank) {
        const RankInputs& own = inputs[size_of(rank)];
        for (int token = 0; token < own.num_tokens; ++token) {
            for (int slot = 0; slot < shape.topk; ++slot) {
                const std::int64_t expert = expert_of(shape, own, token, slot);
                if (!slot_is_live(shape, expert)) continue;
                by_expert[static_cast<std::size_t>(expert)].rows.push_back({rank, token, slot});
            }
        }
    }
    std::vector<Batch> batches;
    for (int expert = 0; expert < shape.num_experts; ++expert) {
        Batch& batch = by_expert[size_of(expert)];
        batch.expert = expert;
        if (!batch.rows.empty()) batches.push_back(std::move(batch));
    }
    if (shape.shared_inter == 0) return batches;
    for (int rank = 0; rank < static_cast<int>(inputs.size()); ++rank) {
        Batch batch;
        batch.expert = kSharedExpert;
        for (int token = 0; token < inputs[size_of(rank)].num_tokens; ++token) {
            batch.rows.push_back({rank, token, kSharedSlot});
        }
        if (!batch.rows.empty()) batches.push_back(std::move(batch));
    }
    return batches;
}

RankOutputs RankStages::view(const Shape& shape) const {
    RankOutputs outputs;
    outputs.max_tokens = max_tokens;
    outputs.act = act.data();
    outputs.act_scale = act_scale.data();
    outputs.combine = reinterpret_cast<const std::uint8_t*>(combine.data());
    outputs.combine_stride = 2 * static_cast<std::uint64_t>(shape.hidden);
    outputs.y = y.data();
    outputs.y_stride = static_cast<std::uint64_t>(shape.hidden);
    if (shape.shared_inter > 0) {
        outputs.shared_act = shared_act.data();
        outputs.shared_act_scale = shared_act_scale.data();
        outputs.shared_row = shared_row.data();
    }
    return outputs;
}

CodedRow input_row(const Problem& problem, const Place& place) {
    const RankInputs& inputs = (*problem.inputs)[size_of(place.rank)];
    const std::size_t hidden = size_of(problem.shape.hidden);
    return {inputs.x.data() + size_of(place.token) * hidden,
            inputs.x_scale.data() + size_of(place.token) * (hidden / 128),
            problem.shape.activation_scale};
}

float routing_weight(const Problem& problem, const Place& place) {
    if (place.slot == kSharedSlot) return 1.0F;
    const RankInputs& inputs = (*problem.inputs)[size_of(place.rank)];
    return inputs.topk_weight[slot_idx(problem.shape, place.token, place.slot)];
}

void load_batch(const Problem& problem, const Batch& batch, Matrix* x,
                std::vector<double>* weight) {
    const bool weight_now = problem.shape.weight_placement == WeightPlacement::kBeforeRequantise;
    *x = Matrix(batch.rows.size(), size_of(problem.shape.hidden));
    weight->assign(batch.rows.size(), 1.0);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        decode_row(input_row(problem, batch.rows[i]), problem.shape.hidden, x->row(i));
        if (weight_now) {
            (*weight)[i] = static_cast<double>(routing_weight(problem, batch.rows[i]));
        }
    }
}

void requantise_row(const double* values, int cols, ActivationScale form, std::uint8_t* codes,
                    std::uint32_t* scales) {
    for (int chunk = 0; chunk < cols / 128; ++chunk) {
        scales[chunk] = requantise_chunk(values + chunk * 128, form, codes + chunk * 128);
    }
}

Status ExpertReader::read(int expert, ExpertBytes* bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return source_->expert(expert, bytes);
}

Status ExpertReader::read_shared(SharedExpertBytes* bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return source_->shared_expert(bytes);
}

Status evaluate_layer(const Problem& problem, std::vector<RankStages>* out) {
    out->clear();
    std::vector<PlainRows> plain;
    allocate(problem, out, &plain);
    const std::vector<Batch> batches = make_batches(problem.shape, *problem.inputs);
    ExpertReader reader(problem.weights);
    std::vector<Status> statuses(batches.size());
    for_each_item(batches.size(), problem.num_threads, [&](std::size_t i) {
        statuses[i] = reader.with(batches[i].expert, [&](const auto& expert) {
            evaluate_batch(problem, batches[i], expert, {out, &plain});
        });
    });
    for (const Status& status : statuses) GCMOE_RETURN_IF_ERROR(status);
    for_each_item(out->size(), problem.num_threads, [&](std::size_t rank) {
        combine_rank(problem, (*problem.inputs)[rank], plain[rank], &(*out)[rank]);
    });
    return {};
}

}  // namespace gcmoe::reference
