#include "cuda/measure/device_bytes.hpp"

#include <cuda_runtime_api.h>

#include "cuda/device/device_buffer.hpp"

namespace gcmoe::cuda::measure {

using device::cuda_status;

Status device_bytes(std::size_t bytes, int fill, const std::string& purpose,
                    std::shared_ptr<void>* out) {
    auto buffer = std::make_shared<device::DeviceBuffer>();
    GCMOE_RETURN_IF_ERROR(buffer->allocate(bytes, purpose));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaMemset(buffer->as<void>(), fill, bytes), purpose));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), purpose));
    *out = std::shared_ptr<void>(buffer, buffer->as<void>());
    return {};
}

Status read_device(const void* from, std::size_t bytes, void* to) {
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "waiting for the device"));
    return cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "reading the device");
}

}  // namespace gcmoe::cuda::measure
