// Reads single experts of layouts that have a tensor per expert and matrix: DeepSeek and Hugging
// Face names.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/shared_tensors.hpp"
#include "checkpoint/stored_source.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "checkpoint/tensor_names.hpp"

namespace gcmoe::checkpoint {

// Fills present_experts, hidden, inter, routed_format and has_bias of a layer.
// Errors: kBadCheckpoint naming the tensor and what it should be.
Status measure_per_expert(CheckpointFolder* folder, const TensorNames& names, LayerInfo* info);

class PerExpertSource final : public StoredSource {
  public:
    PerExpertSource(std::unique_ptr<CheckpointFolder> folder, TensorNames names,
                    const LayerInfo& info, GateUpOrder order);

    Status expert(int expert_idx, StoredExpert* out) override;
    Status shared_expert(StoredExpert* out) override;

  private:
    Status missing_expert(int expert_idx, const std::string& name) const;
    Status tensor_of(int expert_idx, const std::string& matrix, const char* part,
                     StoredTensor* out);
    Status read_matrix(int expert_idx, const std::string& matrix, const MatrixPlace& place,
                       HeldBytes* held, StoredView* out);
    Status read_bias(int expert_idx, const std::string& matrix, const MatrixPlace& place,
                     HeldBytes* held, const float** out);

    std::unique_ptr<CheckpointFolder> folder_;
    TensorNames names_;
    LayerInfo info_;
    MatrixRoles roles_;
};

}  // namespace gcmoe::checkpoint
