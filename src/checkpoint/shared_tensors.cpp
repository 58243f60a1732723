#include "checkpoint/shared_tensors.hpp"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/message.hpp"
#include "checkpoint/tensor_checks.hpp"
#include "numerics/quantise.hpp"

namespace gcmoe::checkpoint {
namespace {

using numerics::kMxfp4Group;

// Reads the matrices of one shared expert.
class SharedReader {
  public:
    SharedReader(CheckpointFolder* folder, const TensorNames& names, const LayerInfo& info)
        : folder_(folder), names_(names), info_(info), held_(std::make_shared<HeldBytes>()) {}

    Status read(const std::string& matrix, const MatrixPlace& place, StoredView* out) {
        StoredTensor weight;
        GCMOE_RETURN_IF_ERROR(folder_->tensor(names_.shared(matrix, "weight"), &weight));
        if (info_.shared_is_bf16) {
            Bf16View view;
            GCMOE_RETURN_IF_ERROR(view_bf16(weight, place, held_.get(), &view));
            *out = view;
            return {};
        }
        StoredTensor scale;
        GCMOE_RETURN_IF_ERROR(folder_->tensor(names_.shared(matrix, names_.words.scale), &scale));
        Fp8View view;
        GCMOE_RETURN_IF_ERROR(view_fp8(weight, scale, place, held_.get(), &view));
        if (view.grid != info_.shared_grid) {
            return bad_tensor(scale, fmt::format("{} {} is another scale grid than that of {}",
                                                 dtype_name(scale.dtype), shape_text(scale.shape),
                                                 names_.words.matrices[0]));
        }
        *out = view;
        return {};
    }

    [[nodiscard]] std::shared_ptr<const void> held() const { return held_; }

  private:
    CheckpointFolder* folder_;
    const TensorNames& names_;
    const LayerInfo& info_;
    std::shared_ptr<HeldBytes> held_;
};

}  // namespace

MatrixRoles matrix_roles(const NameWords& words, GateUpOrder order) {
    MatrixRoles roles{words.matrices[0], words.matrices[1], words.matrices[2]};
    if (order == GateUpOrder::kW1UpW3Gate) std::swap(roles.gate, roles.up);
    return roles;
}

bool has_prefix(const CheckpointFolder& folder, const std::string& prefix) {
    const auto found = folder.file_of_tensor().lower_bound(prefix);
    return found != folder.file_of_tensor().end() &&
           found->first.compare(0, prefix.size(), prefix) == 0;
}

Status measure_shared(CheckpointFolder* folder, const TensorNames& names, LayerInfo* info) {
    if (!has_prefix(*folder, names.prefix + "shared_experts.")) return {};
    const char* first = names.words.matrices[0];
    StoredTensor weight;
    GCMOE_RETURN_IF_ERROR(folder->tensor(names.shared(first, "weight"), &weight));
    if (weight.shape.size() != 2 || weight.shape[0] < 1 || weight.shape[0] > kMaxWidth ||
        weight.shape[0] % kMxfp4Group != 0 || weight.shape[1] != info->hidden) {
        return bad_tensor(
            weight, fmt::format("shape {} is not (shared_inter, {}) with shared_inter a "
                                "multiple of {} up to {}",
                                shape_text(weight.shape), info->hidden, kMxfp4Group, kMaxWidth));
    }
    info->shared_inter = static_cast<int>(weight.shape[0]);
    info->shared_is_bf16 = weight.dtype == Dtype::kBf16;
    if (info->shared_is_bf16) {
        info->shared_grid = ScaleGrid::kFp32Block128;
        return {};
    }
    StoredTensor scale;
    GCMOE_RETURN_IF_ERROR(folder->tensor(names.shared(first, names.words.scale), &scale));
    return find_scale_grid(scale, info->shared_inter, info->hidden, &info->shared_grid);
}

Status read_shared(CheckpointFolder* folder, const TensorNames& names, const LayerInfo& info,
                   const MatrixRoles& roles, StoredExpert* out) {
    if (info.shared_inter == 0) {
        return {Code::kBadCheckpoint,
                fmt::format("folder {}: {} has no shared expert (no tensor {})",
                            quote(folder->folder()), quote(names.prefix),
                            quote(names.shared(names.words.matrices[0], "weight")))};
    }
    SharedReader reader(folder, names, info);
    StoredExpert expert;
    const auto read = [&](const std::string& matrix, const char* role, StoredView* view) {
        const bool is_down = view == &expert.down;
        const MatrixPlace place{fmt::format("matrix {} ({})", matrix, role),
                                is_down ? info.hidden : info.shared_inter,
                                is_down ? info.shared_inter : info.hidden};
        return reader.read(matrix, place, view);
    };
    GCMOE_RETURN_IF_ERROR(read(roles.gate, "gate", &expert.gate));
    GCMOE_RETURN_IF_ERROR(read(roles.up, "up", &expert.up));
    GCMOE_RETURN_IF_ERROR(read(roles.down, "down", &expert.down));
    expert.keep_alive = reader.held();
    *out = std::move(expert);
    return {};
}

}  // namespace gcmoe::checkpoint
