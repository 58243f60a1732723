// Launches role 4 on a stream of the communication partition, after role 1 (Hopper): the shared
// expert's tasks by the SMs that role 1 has left. The kernels are role 2's; they take from the
// shared list only, and role 2 helps when its own list is empty.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::gemm {

// dispatch_units CTAs. launch.has_role4 is set.
cudaError_t launch_role4(const device::GpuLaunch& launch, ActivationScale activation_scale,
                         cudaStream_t stream);

}  // namespace gcmoe::cuda::gemm
