// Whether a stream's work goes into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device/device_buffer.hpp"

namespace gcmoe::cuda::runtime {

inline Status is_capturing(cudaStream_t stream, bool* out) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    GCMOE_RETURN_IF_ERROR(device::cuda_status(cudaStreamIsCapturing(stream, &status),
                                              "asking whether a stream captures"));
    *out = status == cudaStreamCaptureStatusActive;
    return {};
}

}  // namespace gcmoe::cuda::runtime
