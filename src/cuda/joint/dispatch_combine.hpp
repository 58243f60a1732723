// Roles 1 and 3 in one kernel: launch, and what it needs before its first launch.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::joint {

// Call once per device, while no role runs: see prepare_kernel.
cudaError_t prepare_dispatch_combine();

// Role 1, then role 3 on the same CTAs; grid = dispatch units. The plan has CombineOn::kDispatch.
cudaError_t launch_dispatch_combine(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::joint
