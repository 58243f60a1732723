// Device memory that frees itself, and CUDA errors as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::device {

// Ok, or kInternal with what was being done and CUDA's word for it.
inline Status cuda_status(cudaError_t error, const std::string& doing) {
    if (error == cudaSuccess) return {};
    return {Code::kInternal,
            doing + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error)};
}

// One cudaMalloc of the current device.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    ~DeviceBuffer() { cudaFree(base_); }
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    // Frees what it held. Errors: kUnsupported with the bytes asked for and the bytes free.
    Status allocate(std::size_t bytes, const std::string& purpose) {
        *this = DeviceBuffer();
        if (bytes == 0) return {};
        const cudaError_t error = cudaMalloc(&base_, bytes);
        if (error == cudaSuccess) {
            bytes_ = bytes;
            return {};
        }
        cudaGetLastError();  // a failed allocation leaves the context whole
        base_ = nullptr;
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return {Code::kUnsupported, "cudaMalloc of " + std::to_string(bytes) + " bytes for " +
                                        purpose + ": " + cudaGetErrorString(error) + " (" +
                                        std::to_string(free_bytes) + " of " +
                                        std::to_string(total_bytes) + " bytes are free)"};
    }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }
    template <class T>
    [[nodiscard]] T* as(std::size_t offset_bytes = 0) const {
        return reinterpret_cast<T*>(static_cast<unsigned char*>(base_) + offset_bytes);
    }

  private:
    void* base_ = nullptr;
    std::size_t bytes_ = 0;
};

// Cuts pieces of one buffer: the same calls twice, first without a buffer to sum up the bytes.
// Callers: the second pass asks for what the first did.
class Bump {
  public:
    Bump() = default;
    explicit Bump(const DeviceBuffer& buffer) : base_(buffer.as<unsigned char>()) {}
    template <class T>
    T* take(std::size_t count) {
        T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
        bytes_ += (count * sizeof(T) + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
        return count == 0 ? nullptr : piece;
    }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    static constexpr std::size_t kAlignBytes = 256;
    unsigned char* base_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace gcmoe::cuda::device
