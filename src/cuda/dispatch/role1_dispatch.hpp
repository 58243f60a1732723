// Launches role 1 on a stream of the communication partition.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::dispatch {

// Loads the kernel; call before any role of the process runs.
cudaError_t prepare_role1();

// dispatch_units CTAs.
cudaError_t launch_role1(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::dispatch
