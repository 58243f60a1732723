#include "check_weights.hpp"

#include <fmt/format.h>

#include "checkpoint/generated_layer.hpp"

namespace gcmoe::cli {
namespace {

// Packed bytes to keep; beyond that all sets go (a full-width one is 100 MB and used twice).
constexpr std::int64_t kKeepBytes = std::int64_t{512} << 20;

std::string key_of(const reference::SuiteCase& suite_case, const Shape& shape) {
    return fmt::format("{} {} {} {} {} {} {} {} {}", shape.hidden, shape.inter, shape.num_experts,
                       shape.num_ranks, shape.has_bias, shape.shared_inter,
                       static_cast<int>(suite_case.shared_grid),
                       static_cast<int>(shape.activation_scale), suite_case.weight_scales);
}

Status make_set(const reference::SuiteCase& suite_case, const Shape& shape, WeightSet* set) {
    const checkpoint::GeneratedLayer layer{shape, suite_case.weight_scales, suite_case.biases,
                                           suite_case.shared_grid};
    GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(layer, &set->generated));
    set->source = std::make_unique<CachedSource>(set->generated.get(),
                                                 static_cast<std::uint64_t>(kKeepBytes));
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
        std::shared_ptr<const PackedWeights> packed;
        PackReport report;
        GCMOE_RETURN_IF_ERROR(PackedWeights::pack(*set->source, shape, rank, {}, &packed, &report));
        set->packed.push_back(std::move(packed));
        set->packed_bytes += report.packed_bytes;
    }
    return {};
}

}  // namespace

Status WeightCache::find(const reference::SuiteCase& suite_case, const Shape& shape,
                         std::shared_ptr<const WeightSet>* out) {
    const std::string key = key_of(suite_case, shape);
    const auto found = sets_.find(key);
    if (found != sets_.end()) {
        *out = found->second;
        return {};
    }
    auto set = std::make_shared<WeightSet>();
    GCMOE_RETURN_IF_ERROR(make_set(suite_case, shape, set.get()));
    if (bytes_ + set->packed_bytes > kKeepBytes) {
        sets_.clear();
        bytes_ = 0;
    }
    bytes_ += set->packed_bytes;
    ++num_sets_;
    sets_[key] = set;
    *out = set;
    return {};
}

}  // namespace gcmoe::cli
