// Which device this is, and what a plan may ask of it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/runtime/cuda_rank.hpp"
#include "cuda/runtime/driver.hpp"

namespace gcmoe::cuda::runtime {

DeviceState find_device(int device) {
    const Driver* driver = nullptr;
    const Status found = find_driver(&driver);
    if (!found.ok()) return {false, found.message(), 0};
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted != cudaSuccess || device < 0 || device >= count) {
        cudaGetLastError();
        return {false,
                fmt::format("device {} of {} CUDA devices: {}", device, count,
                            counted != cudaSuccess ? cudaGetErrorString(counted) : "no such one"),
                0};
    }
    cudaDeviceProp properties{};
    const cudaError_t asked = cudaGetDeviceProperties(&properties, device);
    if (asked != cudaSuccess) {
        cudaGetLastError();
        return {false, fmt::format("device {}: {}", device, cudaGetErrorString(asked)), 0};
    }
    const std::string what =
        fmt::format("device {}: {}, compute capability {}.{}, {} SMs", device, properties.name,
                    properties.major, properties.minor, properties.multiProcessorCount);
    if (properties.major != 9 || properties.minor != 0) {
        return {false, what + "; the kernels of this build are for sm_90a", 0};
    }
    return {true, what, properties.multiProcessorCount};
}

Status find_machine(const Shape& shape, const OperatorOptions& options, plan::Machine* machine) {
    const DeviceState device = find_device(options.device);
    if (!device.usable) return {Code::kUnsupported, "backend 'cuda': " + device.reason};
    const int pairs = device.sms / 2 / shape.num_ranks;
    if (pairs < 2) {
        return {Code::kBadConfig,
                fmt::format("num_ranks = {} virtual ranks leave {} SM pairs each on a device of {} "
                            "SMs; a rank needs one for each partition",
                            shape.num_ranks, pairs, device.sms)};
    }
    *machine = plan::gpu_machine(device.sms, shape.num_ranks);
    return {};
}

}  // namespace gcmoe::cuda::runtime
