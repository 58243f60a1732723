// Which device this is, and what a plan may ask of it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/device/shared_memory.hpp"
#include "cuda/dispatch/role1_dispatch.hpp"
#include "cuda/runtime/cuda_rank.hpp"
#include "cuda/runtime/driver.hpp"
#include "cuda/runtime/sm_map.hpp"

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

Status list_sm_pairs(int device, std::vector<SmPairInfo>* out) {
    const DeviceState state = find_device(device);
    if (!state.usable) return {Code::kUnsupported, state.reason};
    const SmMap* map = nullptr;
    GCMOE_RETURN_IF_ERROR(find_sm_map(device, &map));
    out->clear();
    for (const SmPair& pair : map->pairs) out->push_back({pair.sms[0], pair.sms[1], pair.gpc});
    return {};
}

// Each CTA's accounts of role 1 must fit into an SM's shared memory.
Status check_experts(const Shape& shape) {
    const std::size_t bytes = dispatch::role1_shared_bytes(
        static_cast<std::uint32_t>(shape.num_experts), static_cast<std::uint32_t>(shape.num_ranks));
    if (bytes <= device::kMostSharedBytes) return {};
    return {Code::kUnsupported,
            fmt::format("num_experts = {}: role 1's accounts need {} bytes of shared memory, an SM "
                        "has {}",
                        shape.num_experts, bytes, device::kMostSharedBytes)};
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
    GCMOE_RETURN_IF_ERROR(check_experts(shape));
    *machine = plan::gpu_machine(device.sms, shape.num_ranks);
    return {};
}

}  // namespace gcmoe::cuda::runtime
