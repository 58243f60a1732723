// All roles in one kernel: launch, and what it needs before its first launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"

namespace gcmoe::cuda::joint {

// Loads all instances; call before any role of the process runs.
cudaError_t prepare_one_grid();

// dispatch_units + compute_units CTAs on a stream of all the rank's SMs; they wait for each other,
// so all must be resident. The plan has CombineOn::kAll; the instance follows its row block and the
// activation scales.
cudaError_t launch_one_grid(const device::GpuLaunch& launch, ActivationScale activation_scale,
                            cudaStream_t stream);

// One instance: kMaxRows = largest row block it takes (16, 32, 64). Each stands in a .cu of its
// own.
template <bool kK32, std::uint32_t kMaxRows>
cudaError_t prepare_one_grid_instance();
template <bool kK32, std::uint32_t kMaxRows>
cudaError_t launch_one_grid_instance(const device::GpuLaunch& launch, cudaStream_t stream);

}  // namespace gcmoe::cuda::joint
