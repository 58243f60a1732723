#include "checkpoint/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "base/math.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr float kNoClamp = std::numeric_limits<float>::infinity();
constexpr Activation kPlain = {kNoClamp, 1.0F, 0.0F};
constexpr Activation kDeepseekV4 = {10.0F, 1.0F, 0.0F};

// Source: shared/facts/models-and-formats.md, 1.1 and 1.2. Not verified there, and taken from the
// family: clamp and routed scale of V4.1 and its draft blocks, routed scale of V4-Pro.
std::vector<ModelEntry> make_models() {
    const auto e8m0_128 = ScaleGrid::kUe8m0Block128;
    const auto e8m0_32 = ScaleGrid::kUe8m0Block32;
    const auto fp32_128 = ScaleGrid::kFp32Block128;
    return {
        // name, hidden, inter, experts, topk, shared inter, activation, bias, routed scale, grid
        {"v4-flash", 4096, 2048, 256, 6, 2048, kDeepseekV4, false, 1.5F, e8m0_128},
        {"v4.1-flash", 5120, 2304, 384, 6, 2304, kDeepseekV4, false, 1.5F, e8m0_32},
        {"v4.1-draft", 5120, 2304, 128, 3, 0, kDeepseekV4, false, 1.5F, e8m0_32},
        {"v4-pro", 7168, 3072, 384, 6, 3072, kDeepseekV4, false, 1.5F, e8m0_128},
        {"glm-5.2", 6144, 2048, 256, 8, 2048, kPlain, false, 2.5F, fp32_128},
        {"kimi-k2", 7168, 2048, 384, 8, 2048, kPlain, false, 2.827F, fp32_128},
        {"deepseek-v3", 7168, 2048, 256, 8, 2048, kPlain, false, 2.5F, fp32_128},
        {"gpt-oss-120b", 2880, 2880, 128, 4, 0, kGptOssActivation, true, 1.0F, e8m0_128},
        {"gpt-oss-20b", 2880, 2880, 32, 4, 0, kGptOssActivation, true, 1.0F, e8m0_128},
        {"qwen3-30b", 2048, 768, 128, 8, 0, kPlain, false, 1.0F, fp32_128},
        {"qwen3-235b", 4096, 1536, 128, 8, 0, kPlain, false, 1.0F, fp32_128},
    };
}

// The multiple of `multiple` nearest to value / divisor, ties up.
int nearest_multiple(int value, int divisor, int multiple) {
    const std::int64_t step = std::int64_t{divisor} * multiple;
    return static_cast<int>((2 * std::int64_t{value} + step) / (2 * step)) * multiple;
}

int reduced_width(int width, int divisor) {
    constexpr int kMultiple = 128;
    return std::max(nearest_multiple(width, divisor, kMultiple), kMultiple);
}

}  // namespace

const std::vector<ModelEntry>& known_models() {
    static const std::vector<ModelEntry> models = make_models();
    return models;
}

Status find_model(const std::string& name, ModelEntry* out) {
    std::string names;
    for (const ModelEntry& entry : known_models()) {
        if (entry.name == name) {
            *out = entry;
            return {};
        }
        if (!names.empty()) names += ", ";
        names += entry.name;
    }
    return {Code::kBadConfig, fmt::format("no model {}; known: {}", quote(name), names)};
}

Shape model_shape(const ModelEntry& entry, int num_ranks) {
    Shape shape;
    shape.hidden = entry.hidden;
    shape.inter = entry.inter;
    shape.num_experts = entry.num_experts;
    shape.topk = entry.topk;
    shape.num_ranks = num_ranks;
    shape.shared_inter = entry.shared_inter;
    shape.has_bias = entry.has_bias;
    shape.activation = entry.activation;
    return shape;
}

ModelEntry reduced(const ModelEntry& entry, int divisor) {
    constexpr int kExpertMultiple = 8;
    GCMOE_CHECK(divisor >= 1, divisor);
    ModelEntry out = entry;
    out.hidden = reduced_width(entry.hidden, divisor);
    out.inter = reduced_width(entry.inter, divisor);
    if (entry.shared_inter > 0) out.shared_inter = reduced_width(entry.shared_inter, divisor);
    out.num_experts = std::max(nearest_multiple(entry.num_experts, divisor, kExpertMultiple),
                               round_up(std::max(entry.topk, kExpertMultiple), kExpertMultiple));
    return out;
}

}  // namespace gcmoe::checkpoint
