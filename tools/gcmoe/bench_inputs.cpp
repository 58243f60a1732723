#include "bench_inputs.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "reference/case_inputs.hpp"

namespace gcmoe::cli {

Status make_bench_inputs(const checkpoint::ModelEntry& model, const Shape& shape, int tokens,
                         int seed, bool masked, reference::RankInputs* out) {
    reference::SuiteCase suite_case;
    suite_case.name = fmt::format("run-{}", seed);
    suite_case.hidden = model.hidden;
    suite_case.inter = model.inter;
    suite_case.experts = shape.num_experts;
    suite_case.topk = shape.topk;
    suite_case.ranks = 1;
    suite_case.tokens = {tokens};
    suite_case.mask = masked ? 1.0 : 0.0;
    suite_case.factor = static_cast<double>(model.routed_scale);
    suite_case.activation = shape.activation;
    suite_case.biases = shape.has_bias;
    suite_case.weight_scales = "normal";
    suite_case.capacity = tokens;
    suite_case.shared_inter = shape.shared_inter;
    return reference::make_inputs(suite_case, reference::CaseSize::kFull, shape, 0, out);
}

int count_touched(const Shape& shape, const reference::RankInputs& inputs) {
    std::set<std::int64_t> touched;
    for (int token = 0; token < inputs.num_tokens; ++token) {
        for (int slot = 0; slot < shape.topk; ++slot) {
            const std::int64_t expert = reference::expert_of(shape, inputs, token, slot);
            if (reference::slot_is_live(shape, expert)) touched.insert(expert);
        }
    }
    return static_cast<int>(touched.size());
}

}  // namespace gcmoe::cli
