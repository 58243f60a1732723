// Packed files as a source of expert weights: the inverse of packing, for verification.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/packed_file.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// Files of one layer, at most one per rank. Experts are read from disk and unpacked whenever they
// are asked for; the shared expert comes from the first file. Values are those that the tiles stand
// for: equal to the packed source's unless packing rounded. Scales of zero groups may differ
// (sm90), and shared scales come as FP32 per 128x128 or UE8M0 per row and K32. Errors: those of
// PackedFile; kBadIndex for an expert that no file has.
class UnpackedSource final : public WeightSource {
  public:
    explicit UnpackedSource(std::vector<std::shared_ptr<const PackedFile>> files)
        : files_(std::move(files)) {}

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;

  private:
    std::vector<std::shared_ptr<const PackedFile>> files_;
};

// Reads a packed file again and compares every weight and bias with the source it was packed from.
// Errors: those of both; kBadCheckpoint with expert, matrix, row and column of the first that
// differs.
Status compare_with_source(WeightSource& source, const std::shared_ptr<const PackedFile>& file);

}  // namespace gcmoe::checkpoint
