// Launches role 1 on a stream of the communication partition.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::dispatch {

// Shared memory that a CTA needs for its accounts; a GPU has kMostSharedBytes.
std::size_t role1_shared_bytes(std::uint32_t num_experts, std::uint32_t num_ranks);

// Loads the kernel; call before any role of the process runs.
cudaError_t prepare_role1();

// dispatch_units CTAs.
cudaError_t launch_role1(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::dispatch
