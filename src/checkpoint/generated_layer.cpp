#include "checkpoint/generated_layer.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/generated_element.hpp"
#include "checkpoint/scale_rule.hpp"

namespace gcmoe::checkpoint {
namespace {

using Bytes = std::unique_ptr<std::uint8_t[]>;

// What the views of a routed expert point into.
struct RoutedStorage {
    Bytes nibbles[3];
    Bytes scales[3];
    std::unique_ptr<float[]> biases[3];
};

// What the views of a shared expert point into.
struct SharedStorage {
    Bytes codes[3];
    std::unique_ptr<float[]> scales[3];  // of floats, or of codes four to a float
};

class GeneratedSource final : public WeightSource {
  public:
    GeneratedSource(const GeneratedLayer& layer, const ScaleRule& rule)
        : layer_(layer), rule_(rule), shared_codes_(layer.shared_grid) {}

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;

  private:
    Mxfp4View routed(int expert_idx, ExpertMatrix which, RoutedStorage* storage) const;
    const float* bias(int expert_idx, ExpertMatrix which, RoutedStorage* storage) const;
    Fp8View shared(ExpertMatrix which, SharedStorage* storage);

    GeneratedLayer layer_;
    ScaleRule rule_;
    SharedCodes shared_codes_;
};

Mxfp4View GeneratedSource::routed(int expert_idx, ExpertMatrix which,
                                  RoutedStorage* storage) const {
    const GeneratedMatrix matrix = generated_matrix(SeedUse::kRoutedWeight, layer_.shape.hidden,
                                                    layer_.shape.inter, expert_idx, which);
    Bytes& nibbles = storage->nibbles[static_cast<int>(which)];
    Bytes& scales = storage->scales[static_cast<int>(which)];
    nibbles = std::make_unique_for_overwrite<std::uint8_t[]>(area(matrix.rows, matrix.cols / 2));
    scales = std::make_unique_for_overwrite<std::uint8_t[]>(
        area(matrix.rows, matrix.cols / numerics::kMxfp4Group));
    generate_mxfp4(rule_, matrix, nibbles.get(), scales.get());
    return {nibbles.get(), scales.get(), matrix.rows, matrix.cols};
}

const float* GeneratedSource::bias(int expert_idx, ExpertMatrix which,
                                   RoutedStorage* storage) const {
    if (!layer_.biases) return nullptr;
    const Shape& shape = layer_.shape;
    const std::uint64_t seed =
        generated_seed(SeedUse::kBias, shape.hidden, shape.inter, expert_idx, which);
    const int num_rows = which == ExpertMatrix::kDown ? shape.hidden : shape.inter;
    std::unique_ptr<float[]>& values = storage->biases[static_cast<int>(which)];
    values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(num_rows));
    float* next = values.get();
    for (int row = 0; row < num_rows; ++row) *next++ = generated_bias(seed, row);
    return values.get();
}

Status GeneratedSource::expert(int expert_idx, ExpertBytes* out) {
    if (expert_idx < 0 || expert_idx >= layer_.shape.num_experts) {
        return {Code::kBadIndex,
                fmt::format("expert {} is outside [0, {})", expert_idx, layer_.shape.num_experts)};
    }
    const auto storage = std::make_shared<RoutedStorage>();
    ExpertBytes bytes;
    bytes.gate = routed(expert_idx, ExpertMatrix::kGate, storage.get());
    bytes.up = routed(expert_idx, ExpertMatrix::kUp, storage.get());
    bytes.down = routed(expert_idx, ExpertMatrix::kDown, storage.get());
    bytes.gate_bias = bias(expert_idx, ExpertMatrix::kGate, storage.get());
    bytes.up_bias = bias(expert_idx, ExpertMatrix::kUp, storage.get());
    bytes.down_bias = bias(expert_idx, ExpertMatrix::kDown, storage.get());
    bytes.keep_alive = storage;
    *out = std::move(bytes);
    return {};
}

Fp8View GeneratedSource::shared(ExpertMatrix which, SharedStorage* storage) {
    const GeneratedMatrix matrix = generated_matrix(SeedUse::kSharedWeight, layer_.shape.hidden,
                                                    layer_.shape.shared_inter, 0, which);
    const GridBlock block = grid_block(layer_.shared_grid);
    const std::size_t num_scales =
        area(ceil_div(matrix.rows, block.rows), ceil_div(matrix.cols, block.cols));
    Bytes& codes = storage->codes[static_cast<int>(which)];
    std::unique_ptr<float[]>& scales = storage->scales[static_cast<int>(which)];
    codes = std::make_unique_for_overwrite<std::uint8_t[]>(area(matrix.rows, matrix.cols));
    scales = std::make_unique<float[]>(num_scales);
    shared_codes_.generate(matrix, codes.get(), scales.get());
    return {codes.get(), scales.get(), layer_.shared_grid, matrix.rows, matrix.cols};
}

Status GeneratedSource::shared_expert(SharedExpertBytes* out) {
    if (layer_.shape.shared_inter == 0) {
        return {Code::kBadConfig, "the generated layer has no shared expert (shared_inter = 0)"};
    }
    const auto storage = std::make_shared<SharedStorage>();
    SharedExpertBytes bytes;
    bytes.gate = shared(ExpertMatrix::kGate, storage.get());
    bytes.up = shared(ExpertMatrix::kUp, storage.get());
    bytes.down = shared(ExpertMatrix::kDown, storage.get());
    bytes.keep_alive = storage;
    *out = std::move(bytes);
    return {};
}

Status check_width(const char* field, int value, int smallest) {
    constexpr int kLargest = 1 << 20;
    if (value >= smallest && value <= kLargest && value % numerics::kMxfp4Group == 0) return {};
    return {Code::kBadConfig, fmt::format("generated layer: {} = {} must be a multiple of {} in "
                                          "{}..{}",
                                          field, value, numerics::kMxfp4Group, smallest, kLargest)};
}

}  // namespace

Status open_generated_layer(const GeneratedLayer& layer, std::unique_ptr<WeightSource>* out) {
    const Shape& shape = layer.shape;
    GCMOE_RETURN_IF_ERROR(check_width("hidden", shape.hidden, numerics::kMxfp4Group));
    GCMOE_RETURN_IF_ERROR(check_width("inter", shape.inter, numerics::kMxfp4Group));
    GCMOE_RETURN_IF_ERROR(check_width("shared_inter", shape.shared_inter, 0));
    if (shape.num_experts < 1) {
        return {Code::kBadConfig, fmt::format("generated layer: num_experts = {} must be positive",
                                              shape.num_experts)};
    }
    if (layer.biases != shape.has_bias) {
        return {Code::kBadConfig, fmt::format("generated layer: biases = {}, but shape.has_bias = "
                                              "{}",
                                              layer.biases, shape.has_bias)};
    }
    ScaleRule rule;
    GCMOE_RETURN_IF_ERROR(parse_scale_rule(layer.weight_scales, &rule));
    *out = std::make_unique<GeneratedSource>(layer, rule);
    return {};
}

}  // namespace gcmoe::checkpoint
