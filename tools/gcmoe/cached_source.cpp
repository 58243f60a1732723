#include "cached_source.hpp"

namespace gcmoe::cli {
namespace {

std::uint64_t bytes_of(const Mxfp4View& view) {
    const auto elements =
        static_cast<std::uint64_t>(view.rows) * static_cast<std::uint64_t>(view.cols);
    return elements / 2 + elements / 32;
}

}  // namespace

Status CachedSource::expert(int expert_idx, ExpertBytes* out) {
    const auto found = kept_.find(expert_idx);
    if (found != kept_.end()) {
        *out = found->second;
    } else {
        GCMOE_RETURN_IF_ERROR(source_->expert(expert_idx, out));
        const std::uint64_t bytes = bytes_of(out->gate) + bytes_of(out->up) + bytes_of(out->down);
        if (kept_bytes_ + bytes <= budget_bytes_) {
            kept_bytes_ += bytes;
            kept_.emplace(expert_idx, *out);
        }
    }
    if (callback_) callback_();
    return {};
}

Status CachedSource::shared_expert(SharedExpertBytes* out) {
    if (shared_ == nullptr) {
        auto shared = std::make_unique<SharedExpertBytes>();
        GCMOE_RETURN_IF_ERROR(source_->shared_expert(shared.get()));
        shared_ = std::move(shared);
    }
    *out = *shared_;
    return {};
}

}  // namespace gcmoe::cli
