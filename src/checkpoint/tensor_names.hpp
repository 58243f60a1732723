// How checkpoints name the tensors of one layer's experts.
#pragma once

#include <array>
#include <string>

namespace gcmoe::checkpoint {

// Layouts with a tensor per expert and matrix: which words they use.
struct NameWords {
    std::array<const char*, 3> matrices;  // gate, up and down, as the model's own files mean them
    const char* scale;
};

// DeepSeek V4 and V4.1. w1 is the gate, w3 the up and w2 the down projection; GateUpOrder says what
// the reader takes w1 and w3 for.
inline constexpr NameWords kDeepseekWords = {{"w1", "w3", "w2"}, "scale"};
// Hugging Face's DeepSeek-V3, GLM, Kimi-K2 and Qwen.
inline constexpr NameWords kHuggingFaceWords = {{"gate_proj", "up_proj", "down_proj"},
                                                "weight_scale_inv"};

struct TensorNames {
    std::string prefix;  // "layers.3.ffn."
    NameWords words = kDeepseekWords;

    [[nodiscard]] std::string expert(int expert_idx, const std::string& matrix,
                                     const char* part) const {
        return prefix + "experts." + std::to_string(expert_idx) + "." + matrix + "." + part;
    }
    [[nodiscard]] std::string shared(const std::string& matrix, const char* part) const {
        return prefix + "shared_experts." + matrix + "." + part;
    }
};

// Layouts with one tensor for all experts, gate and up stacked in the first. All start with
// prefix + "experts.".
struct StackedNames {
    const char* first;
    const char* first_scale;
    const char* first_bias;
    const char* second;
    const char* second_scale;
    const char* second_bias;
    bool
        has_blocks;  // weights (experts, rows, columns / 32, 16), else (experts, rows, columns / 2)
};

inline constexpr StackedNames kGptOssNames = {"gate_up_proj_blocks",
                                              "gate_up_proj_scales",
                                              "gate_up_proj_bias",
                                              "down_proj_blocks",
                                              "down_proj_scales",
                                              "down_proj_bias",
                                              true};
inline constexpr StackedNames kW13Names = {
    "w13_weight", "w13_weight_scale", "w13_bias", "w2_weight", "w2_weight_scale", "w2_bias", false};

}  // namespace gcmoe::checkpoint
