// Empty in builds without kernels.
#ifdef GCMOE_HAS_CUDA

#include "bench_launches.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/math.hpp"
#include "bench_device.hpp"
#include "bench_inputs.hpp"
#include "cuda/measure/device_bytes.hpp"
#include "cuda/weights/generate_layer.hpp"
#include "cuda/weights/pack_on_device.hpp"
#include "layout/cleared_words.hpp"
#include "op/operator_state.hpp"

namespace gcmoe::cli {
namespace {

constexpr int kUnwritten = 0xFF;  // NaN: what a launch leaves unwritten shows

// Scales that no window of 27 octaves holds for a whole row, but one for every 128 of K.
constexpr const char* kWideScales = "span_per_k128:14;span_per_expert:60";

// Every matrix of the weights has the form that is to be measured.
Status check_form(DecodeForm decode, const PackReport& report) {
    const bool wide = decode == DecodeForm::kChunkFactors;
    if ((wide ? report.num_row_form : report.num_chunk_form) == 0) return {};
    return {Code::kBadConfig,
            fmt::format("weights for {}: {} matrices have row factors, {} have chunk factors (rows "
                        "of one chunk need no more than the first)",
                        decode_name(decode), report.num_row_form, report.num_chunk_form)};
}

// Nothing: no kernel behind the roles.
std::optional<cuda::measure::ClosingWork> closing_work(Closing closing) {
    switch (closing) {
        case Closing::kNone:
        case Closing::kGraph:
            return {};
        case Closing::kNode:
            return cuda::measure::ClosingWork{};
        case Closing::kBarrier:
            return cuda::measure::ClosingWork{.meets = true};
        case Closing::kCleaning:
            return cuda::measure::ClosingWork{.clears = true};
        case Closing::kBoth:
            return cuda::measure::ClosingWork{.clears = true, .meets = true};
    }
    return {};
}

}  // namespace

std::vector<LaunchKey> launch_keys(SharedForm shared, bool masked, int seed, int tokens) {
    switch (shared) {
        case SharedForm::kNone:
            return {{.masked = masked, .seed = seed, .tokens = tokens}};
        case SharedForm::kFused:
            return {{.with_shared = true, .masked = masked, .seed = seed, .tokens = tokens}};
        case SharedForm::kApart:
            return {{.masked = masked, .seed = seed, .tokens = tokens},
                    {.with_shared = true, .masked = true, .seed = seed, .tokens = tokens}};
    }
    return {};
}

Status BenchWeights::find(bool with_shared, DecodeForm decode,
                          std::shared_ptr<const PackedWeights>* out) {
    std::shared_ptr<const PackedWeights>& packed = packed_[{with_shared, decode}];
    if (packed == nullptr) {
        const Shape shape = bench_shape(model_, with_shared, decode);
        checkpoint::GeneratedLayer generated;
        generated.shape = checkpoint::model_shape(model_, 1);
        generated.shape.shared_inter = with_shared ? model_.shared_inter : 0;
        generated.biases = model_.has_bias;
        generated.shared_grid = model_.shared_grid;
        if (decode == DecodeForm::kChunkFactors) generated.weight_scales = kWideScales;
        std::shared_ptr<WeightSource> source;
        GCMOE_RETURN_IF_ERROR(cuda::weights::generate_layer(
            generated, cuda::weights::sizes_of(shape), {0, shape.num_experts}, &source));
        PackReport report;
        GCMOE_RETURN_IF_ERROR(
            cuda::weights::pack_on_device(*source, shape, 0, {}, &packed, &report));
        GCMOE_RETURN_IF_ERROR(check_form(decode, report));
    }
    *out = packed;
    return {};
}

Status BenchLaunch::create(const BenchSite& site, const LaunchKey& key,
                           const OperatorOptions& options) {
    key_ = key;
    const checkpoint::ModelEntry& model = site.weights->model();
    const Shape shape = bench_shape(model, key.with_shared, key.decode);
    std::shared_ptr<const PackedWeights> packed;
    GCMOE_RETURN_IF_ERROR(site.weights->find(key.with_shared, key.decode, &packed));
    GCMOE_RETURN_IF_ERROR(Operator::create(shape, packed, site.group, 0, options, &op_));
    reference::RankInputs inputs;
    GCMOE_RETURN_IF_ERROR(
        make_bench_inputs(model, shape, key.tokens, key.seed, key.masked, &inputs));
    GCMOE_RETURN_IF_ERROR(
        op_->write_inputs({inputs.num_tokens, inputs.x.data(), inputs.x_scale.data(),
                           inputs.topk_idx.data(), inputs.topk_weight.data()}));
    GCMOE_RETURN_IF_ERROR(op_->check_inputs(inputs.num_tokens));
    num_elements_ = size_of(key.tokens) * size_of(shape.hidden);
    GCMOE_RETURN_IF_ERROR(
        cuda::measure::device_bytes(num_elements_ * sizeof(std::uint16_t), kUnwritten, "y", &y_));
    args_.num_tokens = key.tokens;
    args_.y = static_cast<std::uint16_t*>(y_.get());
    args_.stream = site.stream;
    return {};
}

Status BenchLaunch::close(const BenchSite& site, Closing closing) {
    const layout::RankMemory memory = op_->state().backend->memory(0);
    return cuda::measure::ClosedLaunch::create([this] { return op_->launch(args_); },
                                               closing_work(closing), layout::cleared_words(memory),
                                               site.stream, &closed_);
}

Status BenchLaunch::synchronize() {
    if (closed_ != nullptr) GCMOE_RETURN_IF_ERROR(closed_->synchronize());
    return op_->synchronize();
}

Status BenchLaunch::read(std::vector<std::uint16_t>* rows) {
    rows->resize(num_elements_);
    return cuda::measure::read_device(y_.get(), num_elements_ * sizeof(std::uint16_t),
                                      rows->data());
}

Status ReferenceOutputs::find(const LaunchKey& key, const std::vector<std::uint16_t>** out) {
    const auto [place, is_missing] = rows_.try_emplace(key);
    if (is_missing) {
        OperatorOptions options = launch_options(*site_.plan, site_.plan->reference, key.tokens);
        options.workspace = "reference";
        BenchLaunch launch;
        GCMOE_RETURN_IF_ERROR(launch.create(site_, key, options));
        GCMOE_RETURN_IF_ERROR(launch.launch());
        GCMOE_RETURN_IF_ERROR(launch.synchronize());
        GCMOE_RETURN_IF_ERROR(launch.read(&place->second));
    }
    *out = &place->second;
    return {};
}

Status ReferenceOutputs::compare(const std::string& variant, BenchLaunch* launch) {
    const LaunchKey& key = launch->key();
    const std::vector<std::uint16_t>* wanted = nullptr;
    GCMOE_RETURN_IF_ERROR(find(key, &wanted));
    GCMOE_RETURN_IF_ERROR(launch->launch());
    GCMOE_RETURN_IF_ERROR(launch->synchronize());
    std::vector<std::uint16_t> rows;
    GCMOE_RETURN_IF_ERROR(launch->read(&rows));
    const auto [mine, theirs] = std::mismatch(rows.begin(), rows.end(), wanted->begin());
    if (mine == rows.end()) return {};
    const std::size_t element = size_of(static_cast<int>(mine - rows.begin()));
    const std::size_t hidden = rows.size() / size_of(key.tokens);
    return {Code::kInternal,
            fmt::format("{}, {}, {} tokens, seed {}: y is {:#06x} at token {}, column {}; a {} "
                        "gives {:#06x}",
                        site_.weights->model().name, variant, key.tokens, key.seed, *mine,
                        element / hidden, element % hidden, site_.plan->reference.name, *theirs)};
}

Status VariantLaunches::create(const BenchSite& site, const BenchVariant& variant,
                               const std::vector<std::vector<LaunchKey>>& keys) {
    variant_ = variant;
    for (const std::vector<LaunchKey>& seed : keys) {
        seeds_.emplace_back();
        for (LaunchKey key : seed) {
            key.decode = variant.decode;
            OperatorOptions options = launch_options(*site.plan, variant, key.tokens);
            options.workspace =
                fmt::format("{}, seed {}, launch {}", variant.name, key.seed, seeds_.back().size());
            auto launch = std::make_unique<BenchLaunch>();
            GCMOE_RETURN_IF_ERROR(launch->create(site, key, options));
            if (variant.closing != Closing::kNone) {
                GCMOE_RETURN_IF_ERROR(launch->close(site, variant.closing));
            }
            seeds_.back().push_back(std::move(launch));
        }
    }
    return {};
}

Status VariantLaunches::launch(std::size_t seed_idx) {
    for (const auto& launch : seeds_[seed_idx]) GCMOE_RETURN_IF_ERROR(launch->launch());
    return {};
}

Status VariantLaunches::synchronize() {
    for (const auto& seed : seeds_) {
        for (const auto& launch : seed) GCMOE_RETURN_IF_ERROR(launch->synchronize());
    }
    return {};
}

Status VariantLaunches::compare(ReferenceOutputs* reference) {
    for (const auto& seed : seeds_) {
        for (const auto& launch : seed) {
            GCMOE_RETURN_IF_ERROR(reference->compare(variant_.name, launch.get()));
        }
    }
    return {};
}

int VariantLaunches::touched(std::size_t seed_idx) const {
    const Statistics statistics = seeds_[seed_idx].front()->op().statistics();
    return static_cast<int>(std::count_if(statistics.expert_rows.begin(),
                                          statistics.expert_rows.end(),
                                          [](std::uint64_t rows) { return rows != 0; }));
}

LaunchTimes VariantLaunches::times(std::size_t seed_idx) const {
    return seeds_[seed_idx].front()->op().statistics().times;
}

Status VariantLaunches::trace(std::size_t seed_idx, trace::Trace* out) const {
    if (variant_.trace_events == 0) return {};
    return op::collect_trace({&seeds_[seed_idx].front()->op()}, out);
}

GrantedPlan VariantLaunches::granted() const {
    const Operator& op = seeds_.front().front()->op();
    const backend::Plan& plan = op.state().plans.front();
    GrantedPlan granted;
    granted.dispatch_units = static_cast<int>(plan.memory.dispatch_units);
    granted.compute_units = static_cast<int>(plan.memory.compute_units);
    granted.row_block = static_cast<int>(plan.memory.row_block);
    granted.ring_blocks = static_cast<int>(plan.memory.ring_blocks);
    granted.lead_blocks = static_cast<int>(plan.lead_blocks);
    granted.second_columns = static_cast<int>(plan.memory.second_columns);
    granted.overlap = plan.overlap;
    granted.placement = plan.placement;
    granted.combine_on = plan.memory.combine_on;
    granted.role4 = plan.has_role4;
    granted.placement_holds = op.statistics().placement.holds();
    granted.tuned = op.state().sources.front().note;
    return granted;
}

}  // namespace gcmoe::cli

#endif
