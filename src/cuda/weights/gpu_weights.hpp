// One rank's weights in the memory of a GPU, as its kernels read them.
//
// Three makers: upload (from the host's tiles, any checkpoint), find (the upload that operators of
// the same weights share), and pack (pack_on_device.hpp: from checkpoint bytes on the device).
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/device/device_buffer.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "gcmoe/status.hpp"
#include "layout/packed_weights.hpp"

namespace gcmoe::cuda::weights {

// What a launch takes over: pointers into device memory that the object owns. Immutable once made;
// may be shared by any number of operators of the same rank.
class GpuWeights final : public DeviceWeights {
  public:
    struct Tables {
        std::vector<device::GpuExpert> experts;  // (experts_per_rank); tiles null = not here
        device::GpuFp8Matrix shared_first;       // (2 * shared_inter, hidden)
        device::GpuFp8Matrix shared_second;      // (hidden, shared_inter)
    };

    // Copies the table of experts to the device. memory: what the tables point into.
    static Status make(Tables tables, std::vector<device::DeviceBuffer> memory,
                       std::shared_ptr<const GpuWeights>* out);

    // Device memory, (experts_per_rank).
    [[nodiscard]] const device::GpuExpert* experts() const {
        return table_.as<device::GpuExpert>();
    }
    // The same table on the host; its pointers are device pointers.
    [[nodiscard]] const std::vector<device::GpuExpert>& host_experts() const {
        return tables_.experts;
    }
    [[nodiscard]] const device::GpuFp8Matrix& shared_first() const { return tables_.shared_first; }
    [[nodiscard]] const device::GpuFp8Matrix& shared_second() const {
        return tables_.shared_second;
    }
    [[nodiscard]] bool has_expert(int expert_idx_in_rank) const override;
    [[nodiscard]] std::size_t bytes() const;
    [[nodiscard]] int device() const { return device_; }  // CUDA ordinal

  private:
    Tables tables_;
    std::vector<device::DeviceBuffer> memory_;
    device::DeviceBuffer table_;
    int device_ = 0;
};

// Copies the host's tiles to the current device. Experts that were not packed stay null.
// Errors: kUnsupported (device memory, with the bytes asked for), kInternal.
Status upload(const PackedStorage& storage, std::shared_ptr<const GpuWeights>* out);

// storage.device if it is there, else the upload that somebody keeps, else a new one.
// Errors: those of upload; kUnsupported for weights that lie on another device or were made by
// another backend.
Status find(const PackedStorage& storage, std::shared_ptr<const GpuWeights>* out);

}  // namespace gcmoe::cuda::weights
