#include "check_weights.hpp"

#include <fmt/format.h>

namespace gcmoe::cli {
namespace {

std::string key_of(const checkpoint::GeneratedLayer& layer) {
    const Shape& shape = layer.shape;
    return fmt::format("{} {} {} {} {} {} {} {} {}", shape.hidden, shape.inter, shape.num_experts,
                       shape.num_ranks, shape.has_bias, shape.shared_inter,
                       static_cast<int>(layer.shared_grid),
                       static_cast<int>(shape.activation_scale), layer.weight_scales);
}

}  // namespace

Status WeightCache::find(const reference::SuiteCase& suite_case, reference::CaseSize size,
                         const Shape& shape, std::shared_ptr<const WeightSet>* out) {
    const Shape live = reference::live_shape(suite_case, size);
    checkpoint::GeneratedLayer layer{shape, suite_case.weight_scales, suite_case.biases,
                                     suite_case.shared_grid};
    layer.shape.hidden = live.hidden;
    layer.shape.inter = live.inter;
    layer.shape.shared_inter = live.shared_inter;
    const std::string key = key_of(layer);
    const auto found = sets_.find(key);
    if (found != sets_.end()) {
        *out = found->second;
        return {};
    }
    auto set = std::make_shared<WeightSet>();
    GCMOE_RETURN_IF_ERROR(machine_->make_weights(layer, shape, set.get()));
    if (bytes_ + set->packed_bytes > machine_->keep_bytes()) {
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
