#include "bench_device.hpp"

#include <fmt/format.h>

#include "bench_inputs.hpp"
#include "gcmoe/capability.hpp"
#include "layer_options.hpp"

namespace gcmoe::cli {
namespace {

class FloorCounter final : public BenchDevice {
  public:
    explicit FloorCounter(const BenchPlan& plan) : plan_(plan) {}

    Status open_model(const checkpoint::ModelEntry& model) override {
        model_ = model;
        return {};
    }

    Status measure(int tokens, std::vector<BenchPoint>* out) override {
        for (const BenchVariant& variant : plan_.variants) {
            out->push_back(empty_point(plan_, model_, variant, tokens));
            GCMOE_RETURN_IF_ERROR(count(&out->back()));
        }
        return {};
    }

    Status measure_empty(BenchPoint* out) override {
        *out = empty_point(plan_, model_, masked_variant(plan_), 1);
        out->mask();
        return count(out);
    }

  private:
    // The median seed is that of the median number of experts.
    Status count(BenchPoint* point) {
        std::vector<double> touched;
        for (BenchSeed& seed : point->seeds) {
            reference::RankInputs inputs;
            GCMOE_RETURN_IF_ERROR(make_bench_inputs(model_, point->shape, point->tokens, seed.seed,
                                                    point->masked, &inputs));
            seed.touched = count_touched(point->shape, inputs);
            touched.push_back(seed.touched);
        }
        point->median_seed = median_idx(touched);
        return {};
    }

    BenchPlan plan_;
    checkpoint::ModelEntry model_;
};

// What a plan or a device refuses is refused before anything is measured.
Status check_points(const BenchPlan& plan) {
    for (const checkpoint::ModelEntry& model : plan.models) {
        for (const BenchVariant& variant : plan.variants) {
            const Shape shape =
                bench_shape(model, variant.shared == SharedForm::kFused, variant.decode);
            for (const int tokens : plan.tokens) {
                GCMOE_RETURN_IF_ERROR(
                    name_option(capability(shape, launch_options(plan, variant, tokens))));
            }
        }
    }
    return {};
}

}  // namespace

std::unique_ptr<BenchDevice> make_floor_counter(const BenchPlan& plan) {
    return std::make_unique<FloorCounter>(plan);
}

Status make_bench_device(const BenchPlan& plan, std::unique_ptr<BenchDevice>* out) {
    for (const BackendInfo& backend : backends()) {
        if (backend.name != "cuda" || backend.available) continue;
        return {Code::kUnsupported,
                fmt::format("times need a GPU: {}; --floors-only needs none", backend.reason)};
    }
    GCMOE_RETURN_IF_ERROR(check_points(plan));
#ifdef GCMOE_HAS_CUDA
    return make_gpu_bench(plan, out);
#else
    static_cast<void>(plan);
    static_cast<void>(out);
    return {Code::kUnsupported, "times need a build with GPU kernels (./dev build cuda)"};
#endif
}

Shape bench_shape(const checkpoint::ModelEntry& model, bool with_shared, DecodeForm decode) {
    Shape shape = padded_shape(model, 1);
    if (!with_shared) shape.shared_inter = 0;
    if (decode == DecodeForm::kK32) shape.activation_scale = ActivationScale::kUe8m0K32;
    return shape;
}

OperatorOptions launch_options(const BenchPlan& plan, const BenchVariant& variant, int tokens) {
    OperatorOptions options;
    options.backend = plan.backend;
    options.launch_mode = variant.launch_mode;
    options.max_tokens = tokens;
    options.device = plan.device;
    options.plans = {variant.plan};
    options.trace_events = variant.trace_events;
    return options;
}

BenchPoint empty_point(const BenchPlan& plan, const checkpoint::ModelEntry& model,
                       const BenchVariant& variant, int tokens) {
    BenchPoint point;
    point.model = model.name;
    point.variant = variant.name;
    point.ablation = variant.ablation;
    point.shape = bench_shape(model, variant.shared != SharedForm::kNone, variant.decode);
    point.shared = variant.shared;
    point.launch_mode = variant.launch_mode;
    point.closing = variant.closing;
    point.decode = variant.decode;
    point.tokens = tokens;
    for (int seed = 0; seed < plan.seeds; ++seed) {
        point.seeds.emplace_back();
        point.seeds.back().seed = seed;
    }
    return point;
}

BenchVariant masked_variant(const BenchPlan& plan) {
    BenchVariant variant = plan.variants.front();
    variant.shared = SharedForm::kNone;
    return variant;
}

}  // namespace gcmoe::cli
