#include "tune_device.hpp"

#include <fmt/format.h>

#include <map>

#include "bench_device.hpp"
#include "bench_inputs.hpp"
#include "gcmoe/capability.hpp"

namespace gcmoe::cli {
namespace {

std::vector<int> rows_of_experts(const Shape& shape, const reference::RankInputs& inputs) {
    std::map<std::int64_t, int> rows;
    for (int token = 0; token < inputs.num_tokens; ++token) {
        for (int slot = 0; slot < shape.topk; ++slot) {
            const std::int64_t expert = reference::expert_of(shape, inputs, token, slot);
            if (reference::slot_is_live(shape, expert)) ++rows[expert];
        }
    }
    std::vector<int> counts;
    for (const auto& [expert, count] : rows) counts.push_back(count);
    return counts;
}

}  // namespace

Status make_tune_site(const BenchPlan& plan, const checkpoint::ModelEntry& model, int tokens,
                      int sms, TuneSite* out) {
    const bool with_shared = plan.variants.front().shared == SharedForm::kFused;
    out->shape = bench_shape(model, with_shared);
    out->tokens = tokens;
    out->sms = sms;
    out->expert_rows.clear();
    for (int seed = 0; seed < plan.seeds; ++seed) {
        reference::RankInputs inputs;
        GCMOE_RETURN_IF_ERROR(make_bench_inputs(model, out->shape, tokens, seed, false, &inputs));
        out->expert_rows.push_back(rows_of_experts(out->shape, inputs));
    }
    return {};
}

Status make_tune_device(const BenchPlan& plan, std::unique_ptr<TuneDevice>* out) {
    for (const BackendInfo& backend : backends()) {
        if (backend.name != "cuda" || backend.available) continue;
        return {
            Code::kUnsupported,
            fmt::format("tuning needs a GPU: {}; --candidates-only needs none", backend.reason)};
    }
#ifdef GCMOE_HAS_CUDA
    return make_gpu_tuner(plan, out);
#else
    static_cast<void>(plan);
    static_cast<void>(out);
    return {Code::kUnsupported, "tuning needs a build with GPU kernels (./dev build cuda)"};
#endif
}

}  // namespace gcmoe::cli
