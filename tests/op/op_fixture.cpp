#include "op/op_fixture.hpp"

#include <cmath>

#include "numerics/bf16.hpp"

namespace gcmoe::test {

GroupOptions group_with(ExecutorKind executor, std::uint64_t seed) {
    GroupOptions group;
    group.executor = executor;
    group.seed = seed;
    return group;
}

OperatorOptions options_for(int max_tokens) {
    OperatorOptions options;
    options.max_tokens = max_tokens;
    options.poison = true;
    options.wait_limits = {60.0, 60.0};
    return options;
}

PlanOptions plan_with(const std::string& name, int row_block, int ring_blocks) {
    PlanOptions plan;
    plan.name = name;
    plan.row_block = row_block;
    plan.ring_blocks = ring_blocks;
    return plan;
}

AllInputs inputs_with(const Shape& shape, std::uint64_t seed, const std::vector<int>& tokens,
                      int capacity, double mask) {
    AllInputs inputs;
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
        const int first = 1000 * static_cast<int>(rank);
        inputs.push_back(stream_inputs(shape, seed, first, tokens[rank], capacity, mask));
    }
    return inputs;
}

std::vector<Rows> expected_bits(const Shape& shape, const AllInputs& inputs) {
    Shape alone = shape;
    alone.num_ranks = 1;
    OperatorOptions options = options_for(inputs.front().capacity);
    options.plans = {plan_with("alone", 24, 4)};
    VirtualLayer layer(alone, {}, options);
    std::vector<Rows> y;
    for (const reference::RankInputs& rank : inputs) y.push_back(layer.run({rank}).front());
    return y;
}

Status launch_rank(VirtualLayer* layer, int rank, const OperatorOptions& options,
                   const reference::RankInputs& inputs, Rows* y, const std::string& plan) {
    const Shape& shape = layer->shape();
    stage_inputs(&layer->op(rank), options.index_type, shape, inputs);
    y->assign(static_cast<std::size_t>(inputs.num_tokens) * static_cast<std::size_t>(shape.hidden),
              0xFFFF);
    LaunchArgs args;
    args.num_tokens = inputs.num_tokens;
    args.y = y->data();
    args.plan = plan;
    return layer->op(rank).launch(args);
}

bool row_is_finite(const Rows& y, int token, int hidden) {
    for (int i = 0; i < hidden; ++i) {
        const std::size_t at = static_cast<std::size_t>(token) * static_cast<std::size_t>(hidden) +
                               static_cast<std::size_t>(i);
        if (!std::isfinite(numerics::bf16_to_float(y[at]))) return false;
    }
    return true;
}

}  // namespace gcmoe::test
