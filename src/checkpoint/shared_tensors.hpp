// The shared expert of a checkpoint layer: a tensor per matrix in every layout.
#pragma once

#include <string>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/layer_info.hpp"
#include "checkpoint/stored_source.hpp"
#include "checkpoint/tensor_names.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// The matrices of one expert by their names in the file, in the order gate, up, down.
struct MatrixRoles {
    std::string gate;
    std::string up;
    std::string down;
};
[[nodiscard]] MatrixRoles matrix_roles(const NameWords& words, GateUpOrder order);

// True if a tensor's name begins so.
[[nodiscard]] bool has_prefix(const CheckpointFolder& folder, const std::string& prefix);

inline constexpr int kMaxWidth = 1 << 20;  // of hidden and inter

// Sets shared_inter, shared_is_bf16 and shared_grid of a layer that has a shared expert; needs
// info->hidden. Errors: kBadCheckpoint naming the tensor.
Status measure_shared(CheckpointFolder* folder, const TensorNames& names, LayerInfo* info);

// Errors: kBadCheckpoint for a layer without a shared expert, and as view_fp8 and view_bf16.
Status read_shared(CheckpointFolder* folder, const TensorNames& names, const LayerInfo& info,
                   const MatrixRoles& roles, StoredExpert* out);

}  // namespace gcmoe::checkpoint
