// The product's judge of a stand-alone loop, over memory of the host.
#include <cstring>

#include "cuda/measure/device_bytes.hpp"
#include "cuda/measure/judge_loop.cpp"

namespace gcmoe::cuda::measure {

Status read_device(const void* from, std::size_t bytes, void* to) {
    std::memcpy(to, from, bytes);
    return {};
}

}  // namespace gcmoe::cuda::measure
