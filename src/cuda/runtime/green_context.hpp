// A CUDA Green Context over some SMs, with one stream in it.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "cuda/runtime/driver.hpp"

namespace gcmoe::cuda::runtime {

// Work on its stream runs on its SMs only; work elsewhere in the process may run there too. Destroy
// graphs that were captured from the stream before.
class GreenContext {
  public:
    GreenContext() = default;
    ~GreenContext();
    GreenContext(GreenContext&& other) noexcept { *this = std::move(other); }
    GreenContext& operator=(GreenContext&& other) noexcept {
        std::swap(context_, other.context_);
        std::swap(stream_, other.stream_);
        std::swap(num_sms_, other.num_sms_);
        return *this;
    }

    // resources: groups of one split call. Errors: kInternal with the driver's word; granted SMs
    // that differ from those asked for, with both numbers.
    static Status create(const std::vector<CUdevResource>& resources, int device,
                         GreenContext* out);
    [[nodiscard]] cudaStream_t stream() const { return stream_; }
    [[nodiscard]] int num_sms() const { return num_sms_; }

  private:
    CUgreenCtx context_ = nullptr;
    cudaStream_t stream_ = nullptr;
    int num_sms_ = 0;
};

}  // namespace gcmoe::cuda::runtime
