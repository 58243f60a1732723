#include "checkpoint/generated_stored.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/math.hpp"
#include "checkpoint/generated_codes.hpp"
#include "checkpoint/generated_element.hpp"
#include "checkpoint/message.hpp"
#include "numerics/bf16.hpp"

namespace gcmoe::checkpoint {
namespace {

// What the views of one expert point into.
struct Storage {
    std::vector<std::unique_ptr<std::uint8_t[]>> bytes;
    std::vector<std::unique_ptr<float[]>> scales;
};

// The bytes of a generated source, as they are.
class PassedThrough final : public StoredSource {
  public:
    explicit PassedThrough(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}

    Status expert(int expert_idx, StoredExpert* out) override {
        ExpertBytes bytes;
        GCMOE_RETURN_IF_ERROR(source_->expert(expert_idx, &bytes));
        *out = {bytes.gate,    bytes.up,        bytes.down,      bytes.gate_bias,
                bytes.up_bias, bytes.down_bias, bytes.keep_alive};
        return {};
    }
    Status shared_expert(StoredExpert* out) override {
        SharedExpertBytes bytes;
        GCMOE_RETURN_IF_ERROR(source_->shared_expert(&bytes));
        *out = {bytes.gate, bytes.up, bytes.down, nullptr, nullptr, nullptr, bytes.keep_alive};
        return {};
    }

  private:
    std::unique_ptr<WeightSource> source_;
};

class WideSource final : public StoredSource {
  public:
    WideSource(const GeneratedLayer& layer, bool is_bf16, std::unique_ptr<WeightSource> below)
        : layer_(layer), is_bf16_(is_bf16), codes_(layer.shared_grid), below_(std::move(below)) {}

    Status expert(int expert_idx, StoredExpert* out) override {
        ExpertBytes bytes;  // for its biases, and to judge expert_idx
        GCMOE_RETURN_IF_ERROR(below_->expert(expert_idx, &bytes));
        make(SeedUse::kRoutedWeight, layer_.shape.inter, expert_idx, out);
        out->gate_bias = bytes.gate_bias;
        out->up_bias = bytes.up_bias;
        out->down_bias = bytes.down_bias;
        hold(bytes.keep_alive, out);
        return {};
    }
    Status shared_expert(StoredExpert* out) override {
        if (!is_bf16_) {
            SharedExpertBytes bytes;
            GCMOE_RETURN_IF_ERROR(below_->shared_expert(&bytes));
            *out = {bytes.gate, bytes.up, bytes.down, nullptr, nullptr, nullptr, bytes.keep_alive};
            return {};
        }
        make(SeedUse::kSharedWeight, layer_.shape.shared_inter, 0, out);
        return {};
    }

  private:
    void make(SeedUse use, int inter, int expert_idx, StoredExpert* out) {
        const auto storage = std::make_shared<Storage>();
        const auto matrix = [&](ExpertMatrix which) {
            return generated_matrix(use, layer_.shape.hidden, inter, expert_idx, which);
        };
        *out = {};
        out->gate = view(matrix(ExpertMatrix::kGate), storage.get());
        out->up = view(matrix(ExpertMatrix::kUp), storage.get());
        out->down = view(matrix(ExpertMatrix::kDown), storage.get());
        out->keep_alive = storage;
    }

    StoredView view(const GeneratedMatrix& matrix, Storage* storage) {
        const int rows = matrix.rows;
        const int cols = matrix.cols;
        storage->bytes.push_back(
            std::make_unique_for_overwrite<std::uint8_t[]>(area(rows, cols) * (is_bf16_ ? 2 : 1)));
        std::uint8_t* bytes = storage->bytes.back().get();
        if (is_bf16_) {
            fill_bf16(matrix, bytes);
            return Bf16View{bytes, rows, cols};
        }
        const GridBlock block = grid_block(layer_.shared_grid);
        storage->scales.push_back(std::make_unique<float[]>(
            area(ceil_div(rows, block.rows), ceil_div(cols, block.cols))));
        float* scales = storage->scales.back().get();
        codes_.generate(matrix, bytes, scales);
        return Fp8View{bytes, scales, layer_.shared_grid, rows, cols};
    }

    static void fill_bf16(const GeneratedMatrix& matrix, std::uint8_t* bytes) {
        for (int row = 0; row < matrix.rows; ++row) {
            for (int col = 0; col < matrix.cols; ++col) {
                const std::uint16_t bits =
                    numerics::bf16_from_float(generated_weight(matrix, row, col));
                *bytes++ = static_cast<std::uint8_t>(bits & 0xFFU);
                *bytes++ = static_cast<std::uint8_t>(bits >> 8);
            }
        }
    }

    static void hold(std::shared_ptr<const void> below, StoredExpert* out) {
        const auto both =
            std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
                std::move(below), out->keep_alive);
        out->keep_alive = both;
    }

    GeneratedLayer layer_;
    bool is_bf16_;
    SharedCodes codes_;
    std::unique_ptr<WeightSource> below_;
};

}  // namespace

Status open_generated_stored(const GeneratedLayer& layer, RoutedFormat format,
                             std::unique_ptr<StoredSource>* out) {
    std::unique_ptr<WeightSource> generated;
    GCMOE_RETURN_IF_ERROR(open_generated_layer(layer, &generated));
    if (format == RoutedFormat::kMxfp4) {
        *out = std::make_unique<PassedThrough>(std::move(generated));
        return {};
    }
    if (layer.weight_scales != "normal") {
        return {Code::kBadConfig, fmt::format("weight_scales {} shapes MXFP4 scales, which {} "
                                              "weights lack",
                                              quote(layer.weight_scales), format_name(format))};
    }
    *out = std::make_unique<WideSource>(layer, format == RoutedFormat::kBf16, std::move(generated));
    return {};
}

}  // namespace gcmoe::checkpoint
