// Launches role 2 on a stream of the compute partition (Hopper).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::gemm {

// Loads all instances; call before any role of the process runs.
cudaError_t prepare_role2();

// compute_units CTAs; the instance follows the plan's row block and the activation scales.
cudaError_t launch_role2(const device::GpuLaunch& launch, ActivationScale activation_scale,
                         cudaStream_t stream);

// Role 4 on a stream of the communication partition, after role 1: the shared expert's tasks by the
// SMs that role 1 has left. The kernels are role 2's; they take from the shared list only, and role
// 2 helps when its own list is through. dispatch_units CTAs; launch.has_role4 is set.
cudaError_t launch_role4(const device::GpuLaunch& launch, ActivationScale activation_scale,
                         cudaStream_t stream);

// One instance: kMaxRows = largest row block it takes (16, 32, 64). Each stands in a .cu of its
// own.
template <bool kK32, std::uint32_t kMaxRows>
cudaError_t prepare_role2_instance();
template <bool kK32, std::uint32_t kMaxRows>
cudaError_t launch_role2_instance(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::gemm
