// Expert weights: the bytes of a checkpoint (WeightSource) and the packed tiles of one rank
// (PackedWeights).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gcmoe/shape.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe {

// One MXFP4 matrix as checkpoints store it: row-major, K contiguous.
struct Mxfp4View {
    const std::uint8_t* nibbles =
        nullptr;  // (rows, cols / 2) two E2M1, even column in the low nibble
    const std::uint8_t* scales = nullptr;  // (rows, cols / 32) UE8M0
    int rows = 0;
    int cols = 0;
};

// The scale grids of FP8 shared-expert weights that the loader accepts.
enum class ScaleGrid : std::uint8_t { kFp32Block128, kUe8m0Block128, kUe8m0Block32, kUe8m0Row32 };

// One FP8 matrix of the shared expert: row-major, K contiguous.
// Scales, row-major: (ceil(rows/128), ceil(cols/128)) float or UE8M0 | (ceil(rows/32), cols/32)
// UE8M0 | (rows, cols/32) UE8M0.
struct Fp8View {
    const std::uint8_t* codes = nullptr;  // (rows, cols) E4M3
    const void* scales = nullptr;
    ScaleGrid grid = ScaleGrid::kUe8m0Block128;
    int rows = 0;
    int cols = 0;
};

// One routed expert. keep_alive owns whatever the views point into.
struct ExpertBytes {
    Mxfp4View gate;                    // (inter, hidden), w1
    Mxfp4View up;                      // (inter, hidden), w3
    Mxfp4View down;                    // (hidden, inter), w2
    const float* gate_bias = nullptr;  // (inter), null without biases
    const float* up_bias = nullptr;    // (inter)
    const float* down_bias = nullptr;  // (hidden)
    std::shared_ptr<const void> keep_alive;
};

// The shared expert. keep_alive owns whatever the views point into.
struct SharedExpertBytes {
    Fp8View gate;  // (shared_inter, hidden)
    Fp8View up;    // (shared_inter, hidden)
    Fp8View down;  // (hidden, shared_inter)
    std::shared_ptr<const void> keep_alive;
};

// Where the bytes of a layer come from: a checkpoint on disk, a generator, tensors in memory.
// Callers: from one thread at a time. Errors: kBadCheckpoint with the tensor's name.
class WeightSource {
  public:
    virtual ~WeightSource() = default;
    virtual Status expert(int expert_idx, ExpertBytes* out) = 0;
    virtual Status shared_expert(SharedExpertBytes* out) = 0;
};

struct PackOptions {
    // Scales that no exact window holds: false = error kInexact, true = round to nearest and count.
    bool allow_inexact = false;
    // Global ids of the experts to pack; empty = all experts of the rank. Operator::check_inputs
    // refuses ids of experts left out (kBadInput); a launch that routes to one all the same stalls
    // (StallCause::kMissingExpert).
    std::vector<int> only_experts;
};

// What packing did, summed over a rank's experts.
struct PackReport {
    int num_experts = 0;
    std::int64_t packed_bytes = 0;        // tiles, scales and factors
    std::int64_t num_row_form = 0;        // expert matrices with one factor per row
    std::int64_t num_chunk_form = 0;      // expert matrices with a factor per row and 128 of K
    std::int64_t num_changed_values = 0;  // weights that allow_inexact moved
    double worst_change = 0.0;            // largest |packed - original| / row maximum among them
};

struct PackedStorage;  // src/layout/packed_weights.hpp

// The tiles of one rank's experts (and of the shared expert, which every rank holds whole).
// Packed once at load; read by the backends; safe to share between workspaces.
class PackedWeights {
  public:
    // Errors: kBadConfig, kBadCheckpoint (also UE8M0 code 255), kInexact naming expert, matrix,
    // row, group.
    static Status pack(WeightSource& source, const Shape& shape, int rank,
                       const PackOptions& options, std::shared_ptr<const PackedWeights>* out,
                       PackReport* report);
    explicit PackedWeights(std::unique_ptr<PackedStorage> storage);
    ~PackedWeights();
    [[nodiscard]] const PackedStorage& storage() const { return *storage_; }
    // True if the tiles of this global expert id are here, on the host or on a device.
    [[nodiscard]] bool has_expert(int expert_idx) const;

  private:
    std::unique_ptr<PackedStorage> storage_;
};

}  // namespace gcmoe
