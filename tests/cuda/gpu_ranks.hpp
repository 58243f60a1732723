// Virtual ranks on one GPU for tests: memory laid out and initialised by the CPU backend's
// operators (the same layouts and signals), roles launched on plain streams of the primary context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/gpu_launch.cuh"
#include "gcmoe/operator.hpp"
#include "reference/layer.hpp"

namespace gcmoe::test {

// True if this process sees a GPU of compute capability 9.0; `reason` says what it saw.
bool has_hopper(std::string* reason);

struct GpuCase {
    Shape shape;
    int num_tokens = 8;  // of every rank
    int row_block = 16;
    int ring_blocks = 4;
    std::string weight_scales = "normal";
    ScaleGrid shared_grid = ScaleGrid::kUe8m0Block128;
    bool per_column = false;
    int dispatch_units = 2;
    int compute_units = 14;
    int lead_blocks = 0;  // 0: the plan's default
    bool capture = true;
};

// One rank's memory on the device and, after run(), its copy on the host.
struct GpuRank {
    std::uint8_t* heap = nullptr;
    std::uint8_t* local = nullptr;
    std::uint16_t* y = nullptr;
    cuda::device::GpuLaunch launch;
    std::vector<std::uint8_t> heap_copy;
    std::vector<std::uint8_t> local_copy;
    std::vector<std::uint16_t> y_copy;
};

class GpuRanks {
  public:
    explicit GpuRanks(const GpuCase& gpu_case);
    ~GpuRanks();
    GpuRanks(const GpuRanks&) = delete;
    GpuRanks& operator=(const GpuRanks&) = delete;

    // `launches` launches of all ranks behind each other, then copies everything back. Empty, or
    // what failed (CUDA errors, stall reports).
    std::string run(int launches);
    // The same launches on the CPU backend.
    void run_on_cpu(int launches);

    [[nodiscard]] const std::vector<GpuRank>& ranks() const { return ranks_; }
    [[nodiscard]] Operator& cpu(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] reference::Problem problem();
    [[nodiscard]] reference::RankOutputs outputs(int rank) const;

  private:
    void make_inputs(int rank);
    void upload_rank(int rank);
    void enqueue();
    template <class T>
    T* upload(const T* from, std::size_t count);

    GpuCase case_;
    std::unique_ptr<WeightSource> source_;
    std::shared_ptr<Group> group_;
    std::vector<std::shared_ptr<const PackedWeights>> weights_;
    std::vector<std::unique_ptr<Operator>> ops_;
    std::vector<reference::RankInputs> inputs_;
    std::vector<std::vector<std::uint16_t>> cpu_y_;
    std::vector<GpuRank> ranks_;
    std::vector<void*> device_;   // to be freed
    std::vector<void*> streams_;  // two per rank
};

}  // namespace gcmoe::test
