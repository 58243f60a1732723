// Entry points of the CUDA driver, looked up at run time: a build with kernels starts on machines
// without a GPU.
#pragma once

#include <cuda.h>

#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::runtime {

// Those of CUDA 12.4: green contexts from lists of SM groups.
struct Driver {
    decltype(&cuInit) init = nullptr;
    decltype(&cuDriverGetVersion) driver_version = nullptr;
    decltype(&cuDeviceGet) device_get = nullptr;
    decltype(&cuGetErrorName) error_name = nullptr;
    decltype(&cuDeviceGetDevResource) device_resource = nullptr;
    decltype(&cuDevSmResourceSplitByCount) split_sms = nullptr;
    decltype(&cuDevResourceGenerateDesc) make_descriptor = nullptr;
    decltype(&cuGreenCtxCreate) green_create = nullptr;
    decltype(&cuGreenCtxDestroy) green_destroy = nullptr;
    decltype(&cuGreenCtxGetDevResource) green_resource = nullptr;
    decltype(&cuGreenCtxStreamCreate) green_stream = nullptr;
    decltype(&cuStreamDestroy) stream_destroy = nullptr;
    decltype(&cuMemsetD32Async) memset_d32_async = nullptr;
};

// The process's table, after cuInit. Errors: kUnsupported with what is missing or what cuInit said.
Status find_driver(const Driver** out);

// Ok, or kInternal with what was being done and the driver's word for it.
Status driver_status(const Driver& driver, CUresult result, const std::string& doing);

}  // namespace gcmoe::cuda::runtime
