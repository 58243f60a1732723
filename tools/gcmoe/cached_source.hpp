// Keeps the experts that a source has handed out, so that packing, reference and judge ask once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "gcmoe/weights.hpp"

namespace gcmoe::cli {

class CachedSource final : public WeightSource {
  public:
    // The first experts that fit into budget_bytes are kept, later ones asked for again: the
    // readers go through the experts in order, time and again, which would empty a cache that drops
    // the oldest.
    CachedSource(WeightSource* source, std::uint64_t budget_bytes)
        : source_(source), budget_bytes_(budget_bytes) {}

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;

    // Called after each expert that is handed out; empty = nobody.
    void on_expert(std::function<void()> callback) { callback_ = std::move(callback); }

  private:
    WeightSource* source_;
    std::uint64_t budget_bytes_;
    std::uint64_t kept_bytes_ = 0;
    std::map<int, ExpertBytes> kept_;
    std::unique_ptr<SharedExpertBytes> shared_;
    std::function<void()> callback_;
};

}  // namespace gcmoe::cli
