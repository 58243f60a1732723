// Reads single experts of layouts that stack all of them in one tensor, gate and up in the first:
// gpt-oss and w13.
#pragma once

#include <memory>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/shared_tensors.hpp"
#include "checkpoint/stored_source.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "checkpoint/tensor_names.hpp"

namespace gcmoe::checkpoint {

// Which row of the first tensor is a gate.
enum class StackedRows : std::uint8_t {
    kInTurn,     // even rows gate, odd rows up
    kGateFirst,  // the first half
    kUpFirst,    // the second half
};

// The tensors of one stacked layer. Shapes: E experts, I inter, H hidden.
struct StackedTensors {
    StoredTensor first;         // (E, 2 * I, H / 2) U8 or I8, or (E, 2 * I, H / 32, 16)
    StoredTensor first_scale;   // (E, 2 * I, H / 32) U8 or F8_E8M0
    StoredTensor second;        // (E, H, I / 2), or (E, H, I / 32, 16)
    StoredTensor second_scale;  // (E, H, I / 32)
    StoredTensor first_bias;    // (E, 2 * I) BF16 or F32; no bytes without biases
    StoredTensor second_bias;   // (E, H)
};

// Opens the tensors and fills present_experts, hidden, inter and has_bias.
// Errors: kBadCheckpoint naming the tensor and what it should be.
Status open_stacked(CheckpointFolder* folder, const std::string& prefix, const StackedNames& names,
                    LayerInfo* info, StackedTensors* out);

class StackedSource final : public StoredSource {
  public:
    // shared_names: of the layer's shared expert, if it has one.
    StackedSource(std::unique_ptr<CheckpointFolder> folder, StackedTensors tensors,
                  StackedRows rows, TensorNames shared_names, const LayerInfo& info);

    // Reads the expert's part of each stack; rows in turn are copied apart.
    Status expert(int expert_idx, StoredExpert* out) override;
    Status shared_expert(StoredExpert* out) override;

  private:
    Status read_first(int expert_idx, HeldBytes* held, Mxfp4View* gate, Mxfp4View* up) const;
    Status read_second(int expert_idx, HeldBytes* held, Mxfp4View* down) const;
    Status read_biases(int expert_idx, HeldBytes* held, StoredExpert* out) const;

    std::unique_ptr<CheckpointFolder> folder_;
    StackedTensors tensors_;
    StackedRows rows_;
    TensorNames shared_names_;
    LayerInfo info_;
};

}  // namespace gcmoe::checkpoint
