#include "support/virtual_layer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>

#include "checkpoint/generated_layer.hpp"
#include "numerics/bits.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::test {

Shape small_shape(int num_ranks, int shared_inter) {
    Shape shape;
    shape.hidden = 256;
    shape.inter = 256;
    shape.num_experts = 16;
    shape.topk = 4;
    shape.num_ranks = num_ranks;
    shape.shared_inter = shared_inter;
    shape.activation.clamp = 10.0F;
    return shape;
}

std::unique_ptr<WeightSource> generated_weights(const Shape& shape, const WeightForms& forms) {
    std::unique_ptr<WeightSource> source;
    checkpoint::GeneratedLayer layer;
    layer.shape = shape;
    layer.biases = shape.has_bias;
    layer.weight_scales = forms.routed;
    layer.shared_grid = forms.shared;
    EXPECT_TRUE(checkpoint::open_generated_layer(layer, &source).ok());
    return source;
}

const std::vector<std::shared_ptr<const PackedWeights>>& packed_layer(const Shape& shape,
                                                                      const WeightForms& forms) {
    using Key = std::tuple<int, int, int, int, int, bool, int, std::string, int>;
    static std::map<Key, std::vector<std::shared_ptr<const PackedWeights>>> cache;
    auto& packed =
        cache[Key{shape.hidden, shape.inter, shape.num_experts, shape.num_ranks, shape.shared_inter,
                  shape.has_bias, static_cast<int>(shape.activation_scale), forms.routed,
                  static_cast<int>(forms.shared)}];
    if (!packed.empty()) return packed;
    const auto source = generated_weights(shape, forms);
    packed.resize(static_cast<std::size_t>(shape.num_ranks));
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        PackReport report;
        const Status status = PackedWeights::pack(*source, shape, rank, PackOptions{},
                                                  &packed[static_cast<std::size_t>(rank)], &report);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    return packed;
}

namespace {

void fill_row(const Shape& shape, std::uint64_t key, int row, reference::RankInputs* inputs) {
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    std::vector<float> values(hidden);
    for (std::size_t k = 0; k < hidden; ++k) {
        values[k] = numerics::hash_normal(numerics::hash_combine(key, k));
    }
    for (std::size_t c = 0; c < hidden / 128; ++c) {
        const std::size_t at = static_cast<std::size_t>(row) * hidden + c * 128;
        std::uint32_t& word = inputs->x_scale[static_cast<std::size_t>(row) * (hidden / 128) + c];
        if (shape.activation_scale == ActivationScale::kFp32K128) {
            float scale = 0;
            numerics::quantise_e4m3_fp32(&values[c * 128], 128, &inputs->x[at], &scale);
            word = numerics::float_to_bits(scale);
            continue;
        }
        word = 0;
        for (std::size_t g = 0; g < 4; ++g) {
            std::uint8_t code = 0;
            numerics::quantise_e4m3_ue8m0(&values[c * 128 + g * 32], 32, &inputs->x[at + g * 32],
                                          &code);
            word |= std::uint32_t{code} << (8 * g);
        }
    }
}

}  // namespace

reference::RankInputs stream_inputs(const Shape& shape, std::uint64_t seed, int first,
                                    int num_tokens, int capacity, double mask) {
    const auto topk = static_cast<std::size_t>(shape.topk);
    const auto rows = static_cast<std::size_t>(capacity);
    reference::RankInputs inputs;
    inputs.num_tokens = num_tokens;
    inputs.capacity = capacity;
    inputs.x.assign(rows * static_cast<std::size_t>(shape.hidden), 0x7F);
    inputs.x_scale.assign(rows * static_cast<std::size_t>(shape.hidden / 128), 0x7FC00000U);
    inputs.topk_idx.assign(rows * topk, 0);
    inputs.topk_weight.assign(rows * topk, numerics::bits_to_float(0x7FC00000U));
    for (int t = 0; t < num_tokens; ++t) {
        const std::uint64_t key = numerics::hash_combine(numerics::hash_combine(seed, 77),
                                                         static_cast<std::uint64_t>(first + t));
        fill_row(shape, key, t, &inputs);
        for (std::size_t k = 0; k < topk; ++k) {
            const std::uint64_t word = numerics::hash_combine(key, 1000000 + k);
            const std::size_t slot = static_cast<std::size_t>(t) * topk + k;
            const bool unused = numerics::hash_uniform(numerics::hash_combine(word, 5)) < mask;
            inputs.topk_idx[slot] =
                unused ? -1
                       : static_cast<std::int64_t>(numerics::splitmix64(word) %
                                                   static_cast<std::uint64_t>(shape.num_experts));
            if (!unused) inputs.topk_weight[slot] = numerics::hash_uniform(word) + 0.1F;
        }
    }
    return inputs;
}

void stage_inputs(Operator* op, IndexType index_type, const Shape& shape,
                  const reference::RankInputs& inputs) {
    const InputViews views = op->inputs();
    const auto hidden = static_cast<std::size_t>(shape.hidden);
    for (int t = 0; t < inputs.capacity; ++t) {
        const auto row = static_cast<std::size_t>(t);
        std::memcpy(views.x + row * static_cast<std::size_t>(views.x_stride),
                    &inputs.x[row * hidden], hidden);
        std::memcpy(views.x_scale + row * static_cast<std::size_t>(views.x_scale_stride),
                    &inputs.x_scale[row * (hidden / 128)], hidden / 128 * 4);
    }
    std::memcpy(views.topk_weight, inputs.topk_weight.data(), inputs.topk_weight.size() * 4);
    for (std::size_t i = 0; i < inputs.topk_idx.size(); ++i) {
        if (index_type == IndexType::kInt64)
            static_cast<std::int64_t*>(views.topk_idx)[i] = inputs.topk_idx[i];
        else
            static_cast<std::int32_t*>(views.topk_idx)[i] =
                static_cast<std::int32_t>(inputs.topk_idx[i]);
    }
}

VirtualLayer::VirtualLayer(const Shape& shape, const GroupOptions& group,
                           const OperatorOptions& options, const WeightForms& forms)
    : shape_(shape), options_(options) {
    Status status = Group::in_process(shape.num_ranks, group, &group_);
    EXPECT_TRUE(status.ok()) << status.message();
    ops_.resize(static_cast<std::size_t>(shape.num_ranks));
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        status = Operator::create(shape, packed_layer(shape, forms)[static_cast<std::size_t>(rank)],
                                  group_, rank, options, &ops_[static_cast<std::size_t>(rank)]);
        EXPECT_TRUE(status.ok()) << status.message();
    }
}

std::vector<Operator*> VirtualLayer::all() {
    std::vector<Operator*> all;
    for (auto& op : ops_) all.push_back(op.get());
    return all;
}

std::vector<std::vector<std::uint16_t>> VirtualLayer::run(
    const std::vector<reference::RankInputs>& inputs, const std::string& plan) {
    std::vector<std::vector<std::uint16_t>> y(ops_.size());
    for (std::size_t r = 0; r < ops_.size(); ++r) {
        stage_inputs(ops_[r].get(), options_.index_type, shape_, inputs[r]);
        y[r].assign(static_cast<std::size_t>(inputs[r].num_tokens) *
                            static_cast<std::size_t>(shape_.hidden) +
                        1,
                    0xFFFF);
    }
    for (std::size_t r = 0; r < ops_.size(); ++r) {
        LaunchArgs args;
        args.num_tokens = inputs[r].num_tokens;
        args.y = y[r].data();
        args.plan = plan;
        const Status status = ops_[r]->launch(args);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    for (std::size_t r = 0; r < ops_.size(); ++r) {
        const Status status = ops_[r]->synchronize();
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(y[r].back(), 0xFFFF) << "y was written past its end";
        y[r].pop_back();
    }
    return y;
}

std::vector<reference::RankInputs> spread_inputs(const Shape& shape, std::uint64_t seed, int total,
                                                 int capacity, double mask) {
    std::vector<reference::RankInputs> inputs;
    int first = 0;
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        const int num_tokens = total / shape.num_ranks + (rank < total % shape.num_ranks ? 1 : 0);
        inputs.push_back(stream_inputs(shape, seed, first, num_tokens, capacity, mask));
        first += num_tokens;
    }
    return inputs;
}

std::vector<std::uint16_t> join_rows(const std::vector<std::vector<std::uint16_t>>& y) {
    std::vector<std::uint16_t> all;
    for (const auto& rows : y) all.insert(all.end(), rows.begin(), rows.end());
    return all;
}

}  // namespace gcmoe::test
