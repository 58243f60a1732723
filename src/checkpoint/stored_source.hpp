// Expert weights in whatever number format a checkpoint stores them.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe::checkpoint {

// One BF16 matrix: row-major, K contiguous.
struct Bf16View {
    const std::uint8_t* bytes = nullptr;  // (rows, cols) little-endian pairs, at any address
    int rows = 0;
    int cols = 0;
};

using StoredView = std::variant<Mxfp4View, Fp8View, Bf16View>;

// One expert, routed or shared. keep_alive owns whatever the views point into.
struct StoredExpert {
    StoredView gate;                   // (inter, hidden)
    StoredView up;                     // (inter, hidden)
    StoredView down;                   // (hidden, inter)
    const float* gate_bias = nullptr;  // (inter), null without biases
    const float* up_bias = nullptr;    // (inter)
    const float* down_bias = nullptr;  // (hidden)
    std::shared_ptr<const void> keep_alive;
};

// Callers: from one thread at a time. Errors: kBadCheckpoint with the tensor's name, kBadIndex for
// an expert outside the layer.
class StoredSource {
  public:
    virtual ~StoredSource() = default;
    virtual Status expert(int expert_idx, StoredExpert* out) = 0;
    virtual Status shared_expert(StoredExpert* out) = 0;
};

[[nodiscard]] int rows_of(const StoredView& view);
[[nodiscard]] int cols_of(const StoredView& view);

// The weights of one row as floats: exact for MXFP4 and BF16, for FP8 code * scale in one rounding.
// Shapes: out (cols).
void decode_row(const StoredView& view, int row, float* out);

}  // namespace gcmoe::checkpoint
