// The sizes and formulas of one MoE layer, as every rank must agree on them.
#pragma once

#include <cstdint>
#include <limits>

#include "gcmoe/status.hpp"

namespace gcmoe {

// act(g, u) = min(g, clamp) * sigmoid(alpha * min(g, clamp)) * (max(min(u, clamp), -clamp) + beta).
// Defaults: plain SwiGLU. DeepSeek V4: clamp 10. gpt-oss: clamp 7, alpha 1.702, beta 1.
struct Activation {
    float clamp = std::numeric_limits<float>::infinity();
    float alpha = 1.0F;
    float beta = 0.0F;
};

// How the scales of FP8 activations stand in x_scale.
enum class ActivationScale : std::uint8_t {
    kFp32K128,  // one float per token and 128 of K (Hopper)
    kUe8m0K32,  // four UE8M0 codes per token and 128 of K, K32 group 0 in the low byte (Blackwell)
};

// Where the routing weight is multiplied in.
enum class WeightPlacement : std::uint8_t {
    kBeforeRequantise,  // onto the SwiGLU output, before it becomes FP8 again
    kAfterSecondGemm,   // onto the FP32 sums of the second GEMM
};

enum class IndexType : std::uint8_t { kInt32, kInt64 };

// One MoE layer over num_ranks expert-parallel ranks. Rank r owns experts
// [r * experts_per_rank(), (r + 1) * experts_per_rank()).
struct Shape {
    int hidden = 0;         // H, a multiple of 128
    int inter = 0;          // I, a multiple of 128, at most 8192 (64 mask bits of 128 columns)
    int num_experts = 0;    // E, a multiple of num_ranks
    int topk = 0;           // k, chosen experts per token
    int num_ranks = 1;      // R, at most 72 (slots of the peer descriptor)
    int shared_inter = 0;   // I_s of the shared expert; 0 = the layer has none
    bool has_bias = false;  // routed experts carry biases on both GEMMs
    Activation activation;
    ActivationScale activation_scale = ActivationScale::kFp32K128;
    WeightPlacement weight_placement = WeightPlacement::kBeforeRequantise;

    [[nodiscard]] int experts_per_rank() const { return num_experts / num_ranks; }
};

// Ok, or kBadConfig with a sentence that names the first field at fault, its value and the limit.
Status validate(const Shape& shape);

}  // namespace gcmoe
