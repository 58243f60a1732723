// Reads single experts of an opened DeepSeek layer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/deepseek_layout.hpp"
#include "checkpoint/deepseek_names.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// The grid that a scale tensor of this type and shape is, for a (rows, cols) matrix.
// Errors: kBadCheckpoint if no grid fits, or more than one.
Status find_scale_grid(const TensorView& scale, int rows, int cols, ScaleGrid* out);

class DeepseekSource final : public WeightSource {
  public:
    DeepseekSource(std::unique_ptr<CheckpointFolder> folder, DeepseekNames names,
                   const LayerInfo& info, GateUpOrder order);

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;

  private:
    // What the views of one expert point into.
    struct Held {
        std::vector<std::shared_ptr<const void>> mappings;
        std::vector<std::unique_ptr<float[]>> floats;
    };
    // One matrix of an expert in the file.
    struct Matrix {
        std::string name;   // "w1"
        std::string label;  // "w1 (gate)"
        int rows = 0;
        int cols = 0;
    };

    [[nodiscard]] Matrix routed_matrix(const char* name) const;
    [[nodiscard]] Matrix matrix_of(const char* name, int inter) const;
    Status missing_expert(int expert_idx, const std::string& name) const;
    Status read_mxfp4(int expert_idx, const Matrix& matrix, Held* held, Mxfp4View* out);
    Status read_bias(int expert_idx, const Matrix& matrix, Held* held, const float** out);
    Status read_fp8(const Matrix& matrix, Held* held, Fp8View* out);
    Status check_fp8_scales(const TensorView& scale, const Matrix& matrix, Held* held,
                            Fp8View* out);

    std::unique_ptr<CheckpointFolder> folder_;
    DeepseekNames names_;
    LayerInfo info_;
    bool w1_is_gate_;
};

}  // namespace gcmoe::checkpoint
