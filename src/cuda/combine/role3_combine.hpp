// Launches role 3 on a stream that has waited for roles 1, 2 and 4.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::combine {

// Loads the kernel; call before any role of the process runs.
cudaError_t prepare_role3();

// compute_units CTAs. With CombineOn::kFollow behind role 2 on its stream: they begin as role 2's
// CTAs leave.
cudaError_t launch_role3(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::combine
