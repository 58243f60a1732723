// The roles of a launch on streams: what a graph captures and an eager launch runs.
//
//   fork --> role 1 --> role 4 (communication partition) --+
//        +-> role 2 (compute partition) -------------------+-> role 3 (compute partition) --> join
//
// Where role 3 follows role 2 SM by SM it is launched right behind it, and waits for role 1 by
// signals. With role 3 on role 1's units, role 1's kernel holds both; in one grid, one kernel holds
// all roles.
//
// Roles 1 and 2 of all ranks have no edge between them: they wait for each other through signals,
// so all of them must be resident together. Role 3 of a rank follows its own roles only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/runtime/partitions.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::cuda::runtime {

// One rank's part of a launch.
struct RankLaunch {
    device::GpuLaunch launch;
    ActivationScale activation_scale = ActivationScale::kFp32K128;
    const RankPartition* partition = nullptr;
    std::uint32_t* num_tokens_word = nullptr;  // device
    int plan_idx = 0;
    int num_tokens = 0;
    cudaStream_t stream = nullptr;  // the caller's; null = the workspace's
};

// Events of one rank's fork and joins; used again by every launch.
class ForkJoin {
  public:
    ForkJoin() = default;
    ~ForkJoin();
    ForkJoin(ForkJoin&& other) noexcept;
    ForkJoin& operator=(ForkJoin&&) = delete;
    Status create();
    // Roles 1 and 2 behind `fork` (an event of the stream the launch belongs to).
    Status begin(const RankLaunch& rank, cudaEvent_t fork);
    // Role 3, and `stream` behind it.
    Status end(const RankLaunch& rank, cudaStream_t stream);

  private:
    cudaEvent_t role1_ended_ = nullptr;
    cudaEvent_t ended_ = nullptr;
};

// Sets every rank's num_tokens, in stream order.
Status write_num_tokens(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream);

// The steps of serial mode on one stream of the primary context: publish, pull, (role 4,) role 2,
// role 3, each over all ranks. No kernel waits for one that has not ended.
Status run_serial(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream);

}  // namespace gcmoe::cuda::runtime
