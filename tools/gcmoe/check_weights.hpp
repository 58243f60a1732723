// Generated weights of the suites: cases share them, so each set is generated and packed once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cached_source.hpp"
#include "gcmoe/weights.hpp"
#include "reference/suite.hpp"

namespace gcmoe::cli {

// Checkpoint bytes of a layer and the packed tiles of every rank.
struct WeightSet {
    std::unique_ptr<WeightSource> generated;
    std::unique_ptr<CachedSource> source;
    std::vector<std::shared_ptr<const PackedWeights>> packed;  // (num_ranks)
    std::int64_t packed_bytes = 0;
};

class WeightCache {
  public:
    // The weights of a case: depend on sizes, scale rule, biases and the shared expert's grid.
    // Errors: those of generating and packing.
    Status find(const reference::SuiteCase& suite_case, const Shape& shape,
                std::shared_ptr<const WeightSet>* out);
    [[nodiscard]] std::size_t num_sets() const { return num_sets_; }

  private:
    std::map<std::string, std::shared_ptr<const WeightSet>> sets_;
    std::int64_t bytes_ = 0;
    std::size_t num_sets_ = 0;  // ever made
};

}  // namespace gcmoe::cli
