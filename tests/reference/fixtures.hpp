// Small layers, their weights and inputs, for the tests of the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/weights.hpp"
#include "reference/inputs.hpp"
#include "reference/layer.hpp"

namespace gcmoe::reference {

// One matrix in memory.
struct Mxfp4Matrix {
    int rows = 0;
    int cols = 0;
    std::vector<std::uint8_t> nibbles;
    std::vector<std::uint8_t> scales;
    [[nodiscard]] Mxfp4View view() const { return {nibbles.data(), scales.data(), rows, cols}; }
};
// All weights one E2M1 code, all scales one code.
Mxfp4Matrix constant_mxfp4(int rows, int cols, std::uint8_t nibble, std::uint8_t scale);
// Random codes, scales in 119..123.
Mxfp4Matrix random_mxfp4(int rows, int cols, std::uint64_t seed);

struct Fp8Matrix {
    int rows = 0;
    int cols = 0;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    std::vector<std::uint8_t> codes;
    std::vector<std::uint8_t> scale_bytes;
    [[nodiscard]] Fp8View view() const {
        return {codes.data(), scale_bytes.data(), grid, rows, cols};
    }
};
Fp8Matrix random_fp8(int rows, int cols, ScaleGrid grid, std::uint64_t seed);

struct ExpertData {
    Mxfp4Matrix gate;
    Mxfp4Matrix up;
    Mxfp4Matrix down;
    std::vector<float> gate_bias;  // empty without biases
    std::vector<float> up_bias;
    std::vector<float> down_bias;
};

// Weights in memory, as a checkpoint would hand them out.
class MemorySource : public WeightSource {
  public:
    std::vector<ExpertData> experts;
    Fp8Matrix shared_gate;
    Fp8Matrix shared_up;
    Fp8Matrix shared_down;

    Status expert(int expert_idx, ExpertBytes* out) override;
    Status shared_expert(SharedExpertBytes* out) override;
};
// Random weights for every expert of a shape.
MemorySource random_source(const Shape& shape, ScaleGrid grid, std::uint64_t seed);

// Random x, routing over all experts with a few unused slots, weights in 0.1..1.1.
std::vector<RankInputs> random_inputs(const Shape& shape, const std::vector<int>& tokens,
                                      std::uint64_t seed);

// 2 ranks, hidden 256, inter 128, 4 experts, top-2, a shared expert of 128 if asked.
Shape small_shape(bool has_shared);

// A problem with its weights and inputs, and the bit-true layer's stages as a right backend's.
struct SmallCase {
    Shape shape;
    MemorySource source;
    std::vector<RankInputs> inputs;
    Problem problem;
    std::vector<RankStages> stages;

    explicit SmallCase(const Shape& layer_shape);
    SmallCase(const SmallCase&) = delete;
    SmallCase& operator=(const SmallCase&) = delete;
};

}  // namespace gcmoe::reference
