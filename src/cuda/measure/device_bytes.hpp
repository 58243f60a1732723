// Device memory for callers that know nothing of CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::measure {

// Bytes of the current device's memory, every one `fill`; freed with the last owner.
// Errors: kUnsupported (device memory, with the bytes asked for), kInternal.
Status device_bytes(std::size_t bytes, int fill, const std::string& purpose,
                    std::shared_ptr<void>* out);

// Copies from device memory, after all work so far. Errors: kInternal.
Status read_device(const void* from, std::size_t bytes, void* to);

}  // namespace gcmoe::cuda::measure
