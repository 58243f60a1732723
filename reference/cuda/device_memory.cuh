// The device memory of one judgement: freed together; the first error sticks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/device_buffer.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::reference {

class DeviceMemory {
  public:
    // Null after an error, and for a count of 0.
    template <class T>
    T* make(std::size_t count, const char* purpose) {
        if (!status_.ok()) return nullptr;
        cuda::device::DeviceBuffer buffer;
        note(buffer.allocate(count * sizeof(T), std::string("the judge's ") + purpose));
        buffers_.push_back(std::move(buffer));
        return buffers_.back().as<T>();
    }
    template <class T>
    T* make_zeros(std::size_t count, const char* purpose) {
        T* to = make<T>(count, purpose);
        if (to != nullptr) check(cudaMemset(to, 0, count * sizeof(T)), purpose);
        return to;
    }
    template <class T>
    T* upload(const T* from, std::size_t count, const char* purpose) {
        T* to = make<T>(count, purpose);
        if (to != nullptr) {
            check(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice), purpose);
        }
        return to;
    }
    template <class T>
    T* upload(const std::vector<T>& from, const char* purpose) {
        return upload(from.data(), from.size(), purpose);
    }
    // The pointer itself if it is the device's, else a copy.
    template <class T>
    const T* stage(const T* from, std::size_t count, const char* purpose) {
        if (from == nullptr || count == 0) return from;
        cudaPointerAttributes attributes{};
        check(cudaPointerGetAttributes(&attributes, from), purpose);
        return attributes.type == cudaMemoryTypeDevice ? from : upload(from, count, purpose);
    }
    template <class T>
    std::vector<T> download(const T* from, std::size_t count, const char* purpose) {
        std::vector<T> to(count);
        if (status_.ok() && count > 0) {
            check(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), purpose);
        }
        return to;
    }
    // Of the launches so far, before they have run.
    void check_launches(const char* purpose) { check(cudaGetLastError(), purpose); }
    [[nodiscard]] const Status& status() const { return status_; }

  private:
    void note(Status status) {
        if (status_.ok()) std::swap(status_, status);
    }
    void check(cudaError_t error, const char* purpose) {
        note(cuda::device::cuda_status(error, std::string("judging, ") + purpose));
    }

    std::vector<cuda::device::DeviceBuffer> buffers_;
    Status status_;
};

}  // namespace gcmoe::reference
