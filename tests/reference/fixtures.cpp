#include "fixtures.hpp"

#include <cstring>

#include "base/math.hpp"
#include "numerics/hash.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::reference {
namespace {}  // namespace

Mxfp4Matrix constant_mxfp4(int rows, int cols, std::uint8_t nibble, std::uint8_t scale) {
    Mxfp4Matrix matrix{rows, cols, {}, {}};
    const auto pair = static_cast<std::uint8_t>(nibble | nibble << 4);
    matrix.nibbles.assign(size_of(rows) * size_of(cols / 2), pair);
    matrix.scales.assign(size_of(rows) * size_of(cols / 32), scale);
    return matrix;
}

Mxfp4Matrix random_mxfp4(int rows, int cols, std::uint64_t seed) {
    Mxfp4Matrix matrix = constant_mxfp4(rows, cols, 0, 0);
    for (std::size_t i = 0; i < matrix.nibbles.size(); ++i) {
        matrix.nibbles[i] = static_cast<std::uint8_t>(numerics::splitmix64(seed + i));
    }
    for (std::size_t i = 0; i < matrix.scales.size(); ++i) {
        const std::uint64_t word = numerics::splitmix64(~seed + i);
        matrix.scales[i] = static_cast<std::uint8_t>(119 + word % 5);
    }
    return matrix;
}

Fp8Matrix random_fp8(int rows, int cols, ScaleGrid grid, std::uint64_t seed) {
    Fp8Matrix matrix;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.grid = grid;
    for (std::size_t i = 0; i < size_of(rows) * size_of(cols); ++i) {
        matrix.codes.push_back(numerics::e4m3_from_float(numerics::hash_normal(seed + i)));
    }
    const bool row_grid = grid == ScaleGrid::kUe8m0Row32;
    const bool block_32 = grid == ScaleGrid::kUe8m0Block32;
    const std::size_t grid_rows = size_of(row_grid   ? rows
                                          : block_32 ? rows / 32
                                                     : (rows + 127) / 128);
    const std::size_t grid_cols = size_of(row_grid || block_32 ? cols / 32 : (cols + 127) / 128);
    for (std::size_t i = 0; i < grid_rows * grid_cols; ++i) {
        const std::uint64_t word = numerics::splitmix64(seed * 3 + i);
        if (grid == ScaleGrid::kFp32Block128) {
            const float scale = 0.01F + 0.02F * numerics::hash_uniform(word);
            const std::size_t at = matrix.scale_bytes.size();
            matrix.scale_bytes.resize(at + sizeof(scale));
            std::memcpy(matrix.scale_bytes.data() + at, &scale, sizeof(scale));
        } else {
            matrix.scale_bytes.push_back(static_cast<std::uint8_t>(119 + word % 4));
        }
    }
    return matrix;
}

Status MemorySource::expert(int expert_idx, ExpertBytes* out) {
    const ExpertData& data = experts[size_of(expert_idx)];
    out->gate = data.gate.view();
    out->up = data.up.view();
    out->down = data.down.view();
    if (!data.gate_bias.empty()) {
        out->gate_bias = data.gate_bias.data();
        out->up_bias = data.up_bias.data();
        out->down_bias = data.down_bias.data();
    }
    return {};
}

Status MemorySource::shared_expert(SharedExpertBytes* out) {
    out->gate = shared_gate.view();
    out->up = shared_up.view();
    out->down = shared_down.view();
    return {};
}

MemorySource random_source(const Shape& shape, ScaleGrid grid, std::uint64_t seed) {
    MemorySource source;
    const auto bias = [](int size, std::uint64_t bias_seed) {
        std::vector<float> values;
        for (std::size_t i = 0; i < size_of(size); ++i) {
            values.push_back(0.1F * numerics::hash_normal(bias_seed + i));
        }
        return values;
    };
    for (int e = 0; e < shape.num_experts; ++e) {
        const std::uint64_t own = numerics::hash_combine(seed, static_cast<std::uint64_t>(e));
        ExpertData data{random_mxfp4(shape.inter, shape.hidden, own + 1000000),
                        random_mxfp4(shape.inter, shape.hidden, own + 2000000),
                        random_mxfp4(shape.hidden, shape.inter, own + 3000000),
                        {},
                        {},
                        {}};
        if (shape.has_bias) {
            data.gate_bias = bias(shape.inter, own + 4000000);
            data.up_bias = bias(shape.inter, own + 5000000);
            data.down_bias = bias(shape.hidden, own + 6000000);
        }
        source.experts.push_back(std::move(data));
    }
    if (shape.shared_inter > 0) {
        source.shared_gate = random_fp8(shape.shared_inter, shape.hidden, grid, seed + 1);
        source.shared_up = random_fp8(shape.shared_inter, shape.hidden, grid, seed + 2);
        source.shared_down = random_fp8(shape.hidden, shape.shared_inter, grid, seed + 3);
    }
    return source;
}

std::vector<RankInputs> random_inputs(const Shape& shape, const std::vector<int>& tokens,
                                      std::uint64_t seed) {
    std::vector<RankInputs> all;
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
        RankInputs inputs;
        inputs.num_tokens = tokens[rank];
        inputs.capacity = 8;
        inputs.x.resize(8 * size_of(shape.hidden));
        inputs.x_scale.resize(8 * size_of(shape.hidden / 128));
        std::vector<double> values(size_of(shape.hidden));
        for (std::size_t token = 0; token < 8; ++token) {
            const std::uint64_t row_seed =
                numerics::hash_combine(seed + rank, static_cast<std::uint64_t>(token));
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i] = static_cast<double>(numerics::hash_normal(row_seed + i));
            }
            requantise_row(values.data(), shape.hidden, shape.activation_scale,
                           inputs.x.data() + token * values.size(),
                           inputs.x_scale.data() + token * (values.size() / 128));
        }
        for (std::size_t i = 0; i < 8 * size_of(shape.topk); ++i) {
            const std::uint64_t word = numerics::hash_combine(seed + rank, 77777 + i);
            const auto choice = static_cast<std::int64_t>(
                word % (static_cast<std::uint64_t>(shape.num_experts) + 1));
            inputs.topk_idx.push_back(choice - 1);  // -1: unused
            inputs.topk_weight.push_back(0.1F + numerics::hash_uniform(word));
        }
        all.push_back(std::move(inputs));
    }
    return all;
}

Shape small_shape(bool has_shared) {
    Shape shape;
    shape.hidden = 256;
    shape.inter = 128;
    shape.num_experts = 4;
    shape.topk = 2;
    shape.num_ranks = 2;
    shape.shared_inter = has_shared ? 128 : 0;
    return shape;
}

SmallCase::SmallCase(const Shape& layer_shape)
    : shape(layer_shape),
      source(random_source(layer_shape, ScaleGrid::kUe8m0Block32, 11)),
      inputs(random_inputs(layer_shape, {5, 3}, 5)) {
    problem.name = "small";
    problem.shape = shape;
    problem.weights = &source;
    problem.inputs = &inputs;
    static_cast<void>(evaluate_layer(problem, &stages));
}

}  // namespace gcmoe::reference
