// A checkpoint's experts in the formats that the operator takes: routed MXFP4, shared FP8. What is
// stored wider is quantised when it is read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>

#include "checkpoint/stored_source.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// What quantising did to the matrices of one kind, over all experts read so far (each once).
struct QuantiseError {
    int num_matrices = 0;
    double squared_error = 0.0;
    double squared_value = 0.0;
    double largest_error = 0.0;  // |quantised - stored|
    double largest_value = 0.0;  // |stored|

    // sqrt(squared_error / squared_value), 0 for matrices of zeros.
    [[nodiscard]] double relative_l2() const;
};

struct QuantiseReport {
    std::array<QuantiseError, 3> routed;  // gate, up, down: to MXFP4
    std::array<QuantiseError, 3> shared;  // gate, up, down: to FP8; num_matrices 0 = stored as FP8

    [[nodiscard]] bool is_empty() const;
};

// Routed matrices that are not MXFP4 become it (numerics/mxfp4.hpp); BF16 shared ones E4M3 with an
// FP32 scale per 128x128 (amax / 448). Others pass through untouched. Peak memory: one expert.
// Errors: those of the source; kBadCheckpoint where a weight times its scale leaves FP32's range,
// naming matrix, row and group.
class QuantisedSource final : public WeightSource {
  public:
    explicit QuantisedSource(std::unique_ptr<StoredSource> source);

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;

    // Filled as experts are read; lives as long as somebody holds it.
    [[nodiscard]] std::shared_ptr<const QuantiseReport> report() const { return report_; }

  private:
    std::unique_ptr<StoredSource> source_;
    std::shared_ptr<QuantiseReport> report_;
    std::set<int> measured_;  // experts that the report counts already; -1: the shared one
};

}  // namespace gcmoe::checkpoint
