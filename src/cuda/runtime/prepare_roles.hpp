// Makes the roles' kernels ready on a device and in a green context, before any role spins there.
#pragma once

#include <cuda_runtime_api.h>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::runtime {

// Loads every kernel on the current device, once per process and device.
Status prepare_roles(int device);

// A rank's streams: of its two partitions, and of both together.
struct RoleStreams {
    cudaStream_t dispatch;
    cudaStream_t compute;
    cudaStream_t whole;
};

// One empty launch of every kernel on the streams that it will run on (see prepare_kernel.cuh).
Status warm_up_roles(const RoleStreams& streams);

}  // namespace gcmoe::cuda::runtime
