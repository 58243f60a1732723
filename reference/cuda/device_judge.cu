#include "reference/cuda/device_judge.hpp"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "reference/cuda/dense_kernel.cuh"
#include "reference/cuda/device_memory.cuh"
#include "reference/cuda/judge_kernels.cuh"
#include "reference/cuda/layer_kernels.cuh"
#include "reference/judge_report.hpp"

namespace gcmoe::reference {
namespace {

// Batches of more rows than this on average get the wide tiles.
constexpr std::size_t kManyRowsFrom = 24;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

unsigned ctas_for(std::size_t threads) {
    return static_cast<unsigned>(ceil_div(threads, std::size_t{kElementThreads}));
}

// The backend's outputs with device pointers.
std::vector<RankOutputs> stage_outputs(const Problem& problem,
                                       const std::vector<RankOutputs>& outputs,
                                       DeviceMemory* memory) {
    const Shape& shape = problem.shape;
    std::vector<RankOutputs> staged = outputs;
    for (std::size_t rank = 0; rank < staged.size(); ++rank) {
        RankOutputs& own = staged[rank];
        const std::size_t tokens = size_of(own.max_tokens);
        const std::size_t slots = tokens * size_of(shape.topk);
        const std::size_t places = size_of(shape.num_ranks) * slots;
        const std::size_t inter = size_of(shape.inter);
        const std::size_t shared = size_of(shape.shared_inter);
        const std::size_t live = size_of((*problem.inputs)[rank].num_tokens);
        const std::size_t hidden = size_of(shape.hidden);
        own.act = memory->stage(own.act, places * inter, "second-GEMM inputs");
        own.act_scale = memory->stage(own.act_scale, places * (inter / 128), "their scales");
        own.combine = memory->stage(own.combine, slots * own.combine_stride, "combine rows");
        own.y = memory->stage(own.y, live == 0 ? 0 : (live - 1) * own.y_stride + hidden, "y");
        if (shared == 0) continue;
        GCMOE_CHECK(own.shared_act != nullptr && own.shared_row != nullptr, rank, shared);
        own.shared_act = memory->stage(own.shared_act, tokens * shared, "shared inputs");
        own.shared_act_scale =
            memory->stage(own.shared_act_scale, tokens * (shared / 128), "their scales");
        own.shared_row = memory->stage(own.shared_row, tokens * hidden, "shared rows");
    }
    return staged;
}

// The launch on the device, and what of it the host goes on to need.
struct DeviceLayer {
    const Problem& problem;
    LayerData data;
    std::vector<RankOutputs> outputs;           // (ranks) device pointers
    std::vector<int> token_base;                // (ranks + 1)
    const int* device_token_base = nullptr;     // the same
    std::vector<const std::uint8_t*> x;         // (ranks) of (num_tokens, hidden)
    std::vector<const std::uint32_t*> x_scale;  // (ranks) of (num_tokens, hidden / 128)

    [[nodiscard]] std::size_t num_ranks() const { return outputs.size(); }
};

void upload_inputs(DeviceLayer* layer, DeviceMemory* memory) {
    const Shape& shape = layer->problem.shape;
    const std::size_t hidden = size_of(shape.hidden);
    std::vector<std::int64_t> topk_idx;
    std::vector<float> topk_weight;
    std::vector<Place> tokens;
    layer->token_base.push_back(0);
    int rank = 0;
    for (const RankInputs& inputs : *layer->problem.inputs) {
        const std::size_t live = size_of(inputs.num_tokens);
        const auto slots = static_cast<std::ptrdiff_t>(live * size_of(shape.topk));
        layer->x.push_back(memory->upload(inputs.x.data(), live * hidden, "inputs"));
        layer->x_scale.push_back(
            memory->upload(inputs.x_scale.data(), live * (hidden / 128), "input scales"));
        topk_idx.insert(topk_idx.end(), inputs.topk_idx.begin(), inputs.topk_idx.begin() + slots);
        topk_weight.insert(topk_weight.end(), inputs.topk_weight.begin(),
                           inputs.topk_weight.begin() + slots);
        for (int t = 0; t < inputs.num_tokens; ++t) tokens.push_back({rank, t, kSharedSlot});
        layer->token_base.push_back(static_cast<int>(tokens.size()));
        ++rank;
    }
    LayerData& data = layer->data;
    data.shape = shape;
    data.total_tokens = static_cast<int>(tokens.size());
    data.topk_idx = memory->upload(topk_idx, "expert ids");
    data.topk_weight = memory->upload(topk_weight, "routing weights");
    data.tokens = memory->upload(tokens, "tokens");
    data.outputs = memory->upload(layer->outputs, "outputs");
    layer->device_token_base = memory->upload(layer->token_base, "token counts");
    const std::size_t elements = tokens.size() * hidden;
    const std::size_t topk = size_of(shape.topk);
    data.combine = memory->make_zeros<std::uint16_t>(elements * topk, "bit-true combine rows");
    data.plain_rows = memory->make_zeros<double>(elements * (topk + 1), "plain rows");
    data.y = memory->make<std::uint16_t>(elements, "bit-true y");
    data.plain = memory->make<double>(elements, "plain y");
    if (shape.shared_inter > 0) {
        data.shared_row = memory->make<std::uint16_t>(elements, "bit-true shared rows");
    }
}

// The batches of routed experts (Mxfp4View) or of the shared one (Fp8View).
template <class View>
class BatchJudge {
  public:
    BatchJudge(const DeviceLayer& layer, const Tolerance& tolerance)
        : layer_(layer), tolerance_(tolerance) {}

    Status run(const std::vector<Batch>& batches, std::vector<RankJudgement>* verdicts) {
        for (const Batch& batch : batches) {
            if ((batch.expert == kSharedExpert) == kIsShared) batches_.push_back(&batch);
        }
        if (batches_.empty()) return {};
        GCMOE_RETURN_IF_ERROR(read_experts());
        list_rows();
        place();
        GCMOE_RETURN_IF_ERROR(memory_.status());
        evaluate();
        judge();
        memory_.check_launches("launching the GEMMs");
        const std::vector<RowVerdict> rows =
            memory_.download(verdicts_, rows_.size(), "reading verdicts");
        GCMOE_RETURN_IF_ERROR(memory_.status());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const RowInfo& row = rows_[i];
            add_row(layer_.problem, row.expert, row.place, rows[i],
                    &(*verdicts)[size_of(row.place.rank)]);
        }
        return {};
    }

  private:
    static constexpr bool kIsShared = std::is_same_v<View, Fp8View>;

    Status read_experts() {
        WeightSource& source = *layer_.problem.weights;
        for (const Batch* batch : batches_) {
            if constexpr (kIsShared) {
                SharedExpertBytes bytes;
                GCMOE_RETURN_IF_ERROR(source.shared_expert(&bytes));
                experts_.push_back({bytes.gate, bytes.up, bytes.down});
                keep_alive_.push_back(bytes.keep_alive);
            } else {
                ExpertBytes bytes;
                GCMOE_RETURN_IF_ERROR(source.expert(batch->expert, &bytes));
                experts_.push_back({bytes.gate, bytes.up, bytes.down, bytes.gate_bias,
                                    bytes.up_bias, bytes.down_bias});
                keep_alive_.push_back(bytes.keep_alive);
            }
        }
        return {};
    }
    void list_rows() {
        const Shape& shape = layer_.problem.shape;
        const std::size_t hidden = size_of(shape.hidden);
        for (std::size_t i = 0; i < batches_.size(); ++i) {
            first_row_.push_back(static_cast<int>(rows_.size()));
            for (const Place& at : batches_[i]->rows) {
                const std::size_t rank = size_of(at.rank);
                const std::size_t token = size_of(at.token);
                rows_.push_back({at, batches_[i]->expert, static_cast<int>(i),
                                 layer_.token_base[rank] + at.token});
                x_rows_.push_back({layer_.x[rank] + token * hidden,
                                   layer_.x_scale[rank] + token * (hidden / 128),
                                   shape.activation_scale});
                seen_act_rows_.push_back(
                    act_row(shape, layer_.outputs.data(), batches_[i]->expert, at));
            }
        }
        first_row_.push_back(static_cast<int>(rows_.size()));
        many_rows_ = rows_.size() >= kManyRowsFrom * batches_.size();
        const int most = many_rows_ ? kManyRows : kFewRows;
        for (std::size_t i = 0; i < batches_.size(); ++i) {
            for (int row = first_row_[i]; row < first_row_[i + 1]; row += most) {
                tiles_.push_back(
                    {static_cast<int>(i), row, std::min(most, first_row_[i + 1] - row)});
            }
        }
    }
    void place() {
        std::vector<View> gates;
        std::vector<View> ups;
        std::vector<View> downs;
        for (const ExpertMatrices<View>& expert : experts_) {
            gates.push_back(expert.gate);
            ups.push_back(expert.up);
            downs.push_back(expert.down);
        }
        gates_ = memory_.upload(gates, "gate views");
        ups_ = memory_.upload(ups, "up views");
        downs_ = memory_.upload(downs, "down views");
        data_.experts = memory_.upload(experts_, "experts");
        data_.rows = memory_.upload(rows_, "rows");
        data_.num_rows = static_cast<int>(rows_.size());
        data_.inter = kIsShared ? layer_.problem.shape.shared_inter : layer_.problem.shape.inter;
        device_tiles_ = memory_.upload(tiles_, "tiles");
        const std::size_t acts = rows_.size() * size_of(data_.inter);
        gate_sums_ = memory_.make<double>(acts, "gate sums");
        up_sums_ = memory_.make<double>(acts, "up sums");
        gated_ = memory_.make<double>(acts, "gated values");
        sums_ = memory_.make<double>(rows_.size() * hidden(), "second-GEMM sums");
        codes_ = memory_.make<std::uint8_t>(acts, "bit-true second-GEMM inputs");
        scales_ = memory_.make<std::uint32_t>(acts / 128, "their scales");
        verdicts_ = memory_.make<RowVerdict>(rows_.size(), "verdicts");
        place_rows();
        gate_units_ = make_units(data_.inter);
        up_units_ = make_units(data_.inter);
        output_units_ = make_units(layer_.problem.shape.hidden);
    }
    void place_rows() {
        const std::size_t inter = size_of(data_.inter);
        std::vector<CodedRow> wanted_act;
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            wanted_act.push_back({codes_ + i * inter, scales_ + i * (inter / 128),
                                  layer_.problem.shape.activation_scale});
        }
        x_.rows = memory_.upload(x_rows_, "input rows");
        wanted_act_.rows = memory_.upload(wanted_act, "bit-true rows");
        seen_act_.rows = memory_.upload(seen_act_rows_, "the backend's rows");
    }
    UnitArrays make_units(int cols) {
        UnitArrays units;
        if (layer_.problem.per_column) {
            units.elements = memory_.make<double>(rows_.size() * size_of(cols), "element units");
        } else {
            units.rows = memory_.make<double>(rows_.size(), "row units");
        }
        return units;
    }
    template <DotKind kKind = DotKind::kSum, class Rows>
    void dot(const View* matrices, const Rows& x, int num_columns, double* out) {
        const dim3 grid(static_cast<unsigned>(num_columns / kDotColumns),
                        static_cast<unsigned>(tiles_.size()));
        const DotJob<View, Rows> job{matrices, device_tiles_, x, out, num_columns};
        if (many_rows_) {
            dot_tiles<kManyRows, kKind><<<grid, kDotThreads>>>(job);
        } else {
            dot_tiles<kFewRows, kKind><<<grid, kDotThreads>>>(job);
        }
    }
    // The bit-true layer and the plain one, up to their combine rows.
    void evaluate() {
        const std::size_t acts = rows_.size() * size_of(data_.inter);
        const unsigned sum_ctas = ctas_for(rows_.size() * hidden());
        const int num_hidden = layer_.problem.shape.hidden;
        dot(gates_, x_, data_.inter, gate_sums_);
        dot(ups_, x_, data_.inter, up_sums_);
        gate_rows<<<ctas_for(acts), kElementThreads>>>(layer_.data, data_, gate_sums_, up_sums_,
                                                       gated_);
        requantise_rows<<<ctas_for(acts / 128), kElementThreads>>>(
            layer_.problem.shape.activation_scale, static_cast<int>(acts / 128), gated_, codes_,
            scales_);
        dot(downs_, wanted_act_, num_hidden, sums_);
        round_rows<<<sum_ctas, kElementThreads>>>(layer_.data, data_, sums_);
        dot(downs_, DenseRows{gated_, data_.inter}, num_hidden, sums_);
        weigh_rows<<<sum_ctas, kElementThreads>>>(layer_.data, data_, sums_);
        store_plain_rows<<<sum_ctas, kElementThreads>>>(layer_.data, data_, sums_);
    }
    // Of gate_sums_, up_sums_ and of what sums_ holds by then: the backend's second GEMM.
    void fill_units() {
        const int num_hidden = layer_.problem.shape.hidden;
        if (!layer_.problem.per_column) {
            const auto num_rows = static_cast<unsigned>(rows_.size());
            row_units<<<num_rows, kRowThreads>>>(gate_sums_, data_.inter, gate_units_.rows);
            row_units<<<num_rows, kRowThreads>>>(up_sums_, data_.inter, up_units_.rows);
            row_units<<<num_rows, kRowThreads>>>(sums_, num_hidden, output_units_.rows);
            return;
        }
        dot<DotKind::kTerms>(gates_, x_, data_.inter, gate_units_.elements);
        dot<DotKind::kTerms>(ups_, x_, data_.inter, up_units_.elements);
        dot<DotKind::kTerms>(downs_, seen_act_, num_hidden, output_units_.elements);
        sum_units<<<ctas_for(rows_.size() * size_of(data_.inter)), kElementThreads>>>(
            data_, gate_units_.elements, up_units_.elements);
        output_units<<<ctas_for(rows_.size() * hidden()), kElementThreads>>>(
            layer_.data, data_, output_units_.elements);
    }
    // Stages (a) and (b) of every row.
    void judge() {
        const int num_hidden = layer_.problem.shape.hidden;
        dot(downs_, seen_act_, num_hidden, sums_);
        weigh_rows<<<ctas_for(rows_.size() * hidden()), kElementThreads>>>(layer_.data, data_,
                                                                           sums_);
        fill_units();
        JudgeJob job;
        job.tolerance = tolerance_;
        job.gate = gate_sums_;
        job.up = up_sums_;
        job.gated = gated_;
        job.wanted = sums_;
        job.gate_units = gate_units_;
        job.up_units = up_units_;
        job.output_units = output_units_;
        job.verdicts = verdicts_;
        judge_rows<<<static_cast<unsigned>(rows_.size()), kRowThreads>>>(layer_.data, data_, job);
    }
    [[nodiscard]] std::size_t hidden() const { return size_of(layer_.problem.shape.hidden); }

    const DeviceLayer& layer_;
    Tolerance tolerance_;
    DeviceMemory memory_;
    std::vector<const Batch*> batches_;
    std::vector<ExpertMatrices<View>> experts_;  // (batches), as first_row_ but for its last
    std::vector<std::shared_ptr<const void>> keep_alive_;
    std::vector<int> first_row_;
    std::vector<RowInfo> rows_;            // (rows), as x_rows_ and seen_act_rows_
    std::vector<CodedRow> x_rows_;         // device pointers
    std::vector<CodedRow> seen_act_rows_;  // device pointers: the backend's second-GEMM inputs
    std::vector<RowTile> tiles_;
    bool many_rows_ = false;
    BatchData<View> data_;
    const View* gates_ = nullptr;
    const View* ups_ = nullptr;
    const View* downs_ = nullptr;
    const RowTile* device_tiles_ = nullptr;
    double* gate_sums_ = nullptr;  // (rows, inter)
    double* up_sums_ = nullptr;    // (rows, inter)
    double* gated_ = nullptr;      // (rows, inter)
    double* sums_ = nullptr;       // (rows, hidden)
    std::uint8_t* codes_ = nullptr;
    std::uint32_t* scales_ = nullptr;
    CodedRows x_{};
    CodedRows wanted_act_{};
    CodedRows seen_act_{};
    UnitArrays gate_units_;
    UnitArrays up_units_;
    UnitArrays output_units_;
    RowVerdict* verdicts_ = nullptr;
};

// (c): the first wrong sum of every rank.
Status judge_all_sums(const DeviceLayer& layer, DeviceMemory* memory,
                      std::vector<RankJudgement>* verdicts) {
    const std::size_t num_ranks = layer.num_ranks();
    const std::vector<unsigned long long> none(num_ranks, kNoWrongSum);
    auto* first = memory->upload(none, "wrong sums");
    auto* details = memory->make<WrongSum>(num_ranks, "wrong sums");
    GCMOE_RETURN_IF_ERROR(memory->status());
    const std::size_t elements =
        size_of(layer.data.total_tokens) * size_of(layer.problem.shape.hidden);
    judge_sums<<<ctas_for(elements), kElementThreads>>>(layer.data, first);
    describe_sums<<<1, static_cast<unsigned>(num_ranks)>>>(layer.data, first, details);
    memory->check_launches("comparing sums");
    const auto found = memory->download(first, num_ranks, "comparing sums");
    const auto wrong = memory->download(details, num_ranks, "comparing sums");
    GCMOE_RETURN_IF_ERROR(memory->status());
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        if (found[rank] == kNoWrongSum) continue;
        add_wrong_sum(layer.problem, static_cast<int>(rank), wrong[rank], &(*verdicts)[rank]);
    }
    return {};
}

// The sums of (d) for every rank. Shapes: out (ranks).
Status measure(const DeviceLayer& layer, Wanted wanted, DeviceMemory* memory,
               std::vector<DistanceSums>* out) {
    const auto num_ranks = static_cast<unsigned>(layer.num_ranks());
    const int hidden = layer.problem.shape.hidden;
    wanted.token_base = layer.device_token_base;
    if (layer.problem.per_column) {
        const std::size_t count = num_ranks * size_of(hidden);
        wanted.units = memory->make<double>(count, "column units");
    }
    auto* partial = memory->make<DistanceSums>(num_ranks * kDistanceCtas, "distances");
    GCMOE_RETURN_IF_ERROR(memory->status());
    if (wanted.units != nullptr) {
        distance_units<<<ctas_for(num_ranks * size_of(hidden)), kElementThreads>>>(
            static_cast<int>(num_ranks), hidden, wanted);
    }
    measure_distance<<<dim3(kDistanceCtas, num_ranks), kDistanceThreads>>>(layer.data, wanted,
                                                                           partial);
    memory->check_launches("measuring distances");
    const auto parts = memory->download(partial, num_ranks * kDistanceCtas, "measuring distances");
    out->assign(num_ranks, DistanceSums{});
    for (std::size_t i = 0; i < parts.size(); ++i) (*out)[i / kDistanceCtas].merge(parts[i]);
    return memory->status();
}

void download_expected(const DeviceLayer& layer, DeviceMemory* memory,
                       std::vector<RankExpected>* expected) {
    const std::size_t hidden = size_of(layer.problem.shape.hidden);
    expected->clear();
    for (std::size_t rank = 0; rank < layer.num_ranks(); ++rank) {
        const std::size_t begin = size_of(layer.token_base[rank]) * hidden;
        const std::size_t count = size_of(layer.token_base[rank + 1]) * hidden - begin;
        expected->push_back({memory->download(layer.data.y + begin, count, "reading y back"),
                             memory->download(layer.data.plain + begin, count, "reading y back")});
    }
}

}  // namespace

Status judge_layer_on_device(const Problem& problem, const std::vector<RankOutputs>& outputs,
                             const Tolerance& tolerance, std::vector<RankJudgement>* out,
                             std::vector<RankExpected>* expected) {
    const std::size_t num_ranks = problem.inputs->size();
    GCMOE_CHECK(outputs.size() == num_ranks, outputs.size(), num_ranks);
    out->assign(num_ranks, RankJudgement{});
    DeviceMemory memory;
    DeviceLayer layer{problem, {}, stage_outputs(problem, outputs, &memory), {}, {}, {}, {}};
    upload_inputs(&layer, &memory);
    GCMOE_RETURN_IF_ERROR(memory.status());
    const std::vector<Batch> batches = make_batches(problem.shape, *problem.inputs);
    GCMOE_RETURN_IF_ERROR(BatchJudge<Mxfp4View>(layer, tolerance).run(batches, out));
    GCMOE_RETURN_IF_ERROR(BatchJudge<Fp8View>(layer, tolerance).run(batches, out));
    std::vector<DistanceSums> bit_true(num_ranks);
    std::vector<DistanceSums> plain(num_ranks);
    if (layer.data.total_tokens > 0) {
        combine_tokens<<<ctas_for(size_of(layer.data.total_tokens) * size_of(problem.shape.hidden)),
                         kElementThreads>>>(layer.data);
        GCMOE_RETURN_IF_ERROR(judge_all_sums(layer, &memory, out));
        Wanted wanted;
        wanted.bits = layer.data.y;
        GCMOE_RETURN_IF_ERROR(measure(layer, wanted, &memory, &bit_true));
        wanted.bits = nullptr;
        wanted.values = layer.data.plain;
        GCMOE_RETURN_IF_ERROR(measure(layer, wanted, &memory, &plain));
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        add_whole(problem, bit_true[rank], plain[rank], tolerance, &(*out)[rank]);
        judge_distance(problem, static_cast<int>(rank), kMaxRelL2, &(*out)[rank]);
    }
    if (expected != nullptr) download_expected(layer, &memory, expected);
    return memory.status();
}

}  // namespace gcmoe::reference
