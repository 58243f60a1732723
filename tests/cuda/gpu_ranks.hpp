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

// Microseconds of one launch of a rank's roles, first CTA's begin to last CTA's end.
struct RoleTimes {
    double dispatch_us = 0;
    double compute_us = 0;
    double combine_us = 0;
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
    // Median microseconds of one launch of rank 0, L2 flushed by writing 512 MiB before each.
    double time_us(int warm_ups, int timed);
    // For timing only, before run(): as at the start, with other numbers of tokens (at most the
    // case's), of rows of a block (ring_blocks shrinks alike) and of blocks in the lead.
    void reset(int num_tokens, int row_block, int lead_blocks);
    // Of rank 0's last launch.
    [[nodiscard]] RoleTimes role_times();

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
