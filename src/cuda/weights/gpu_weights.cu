#include "cuda/weights/gpu_weights.hpp"

#include <mutex>
#include <string>

namespace gcmoe::cuda::weights {
namespace {

using device::Bump;
using device::cuda_status;
using device::DeviceBuffer;
using device::GpuExpert;
using device::GpuFp8Matrix;
using device::GpuMatrix;

// One piece of the buffer for `from`, and the copy into it in the pass that has a buffer.
template <class T>
Status put(const std::vector<T>& from, Bump* bump, const T** to) {
    T* piece = bump->take<T>(from.size());
    *to = piece;
    if (piece == nullptr) return {};
    return cuda_status(
        cudaMemcpy(piece, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
        "copying weights to the device");
}

Status put_matrix(const layout::PackedMatrix& from, Bump* bump, GpuMatrix* to) {
    using Form = layout::PackedMatrix::DecodeForm;
    GCMOE_RETURN_IF_ERROR(put(from.tiles, bump, &to->tiles));
    GCMOE_RETURN_IF_ERROR(put(from.bias, bump, &to->bias));
    return put(from.factors, bump,
               from.form == Form::kRowFactor ? &to->row_factors : &to->chunk_factors);
}

Status put_fp8_matrix(const layout::PackedFp8Matrix& from, Bump* bump, GpuFp8Matrix* to) {
    to->groups = static_cast<std::uint32_t>(from.scale_groups_per_chunk);
    GCMOE_RETURN_IF_ERROR(put(from.tiles, bump, &to->tiles));
    return put(from.scales, bump, &to->scales);
}

Status put_rank(const PackedStorage& storage, Bump* bump, GpuWeights::Tables* to) {
    to->experts.assign(storage.experts.size(), GpuExpert{});
    for (std::size_t i = 0; i < storage.experts.size(); ++i) {
        const layout::PackedExpert* expert = storage.experts[i].get();
        if (expert == nullptr) continue;
        GCMOE_RETURN_IF_ERROR(put_matrix(expert->first, bump, &to->experts[i].first));
        GCMOE_RETURN_IF_ERROR(put_matrix(expert->second, bump, &to->experts[i].second));
    }
    if (!storage.has_shared) return {};
    GCMOE_RETURN_IF_ERROR(put_fp8_matrix(storage.shared_first, bump, &to->shared_first));
    return put_fp8_matrix(storage.shared_second, bump, &to->shared_second);
}

}  // namespace

Status GpuWeights::make(Tables tables, std::vector<DeviceBuffer> memory,
                        std::shared_ptr<const GpuWeights>* out) {
    auto made = std::make_shared<GpuWeights>();
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&made->device_), "cudaGetDevice"));
    const std::size_t bytes = tables.experts.size() * sizeof(GpuExpert);
    GCMOE_RETURN_IF_ERROR(made->table_.allocate(bytes, "the table of experts"));
    GCMOE_RETURN_IF_ERROR(cuda_status(
        cudaMemcpy(made->table_.as<void>(), tables.experts.data(), bytes, cudaMemcpyHostToDevice),
        "copying the table of experts"));
    made->tables_ = std::move(tables);
    made->memory_ = std::move(memory);
    *out = std::move(made);
    return {};
}

bool GpuWeights::has_expert(int expert_idx_in_rank) const {
    const auto at = static_cast<std::size_t>(expert_idx_in_rank);
    return at < tables_.experts.size() && tables_.experts[at].first.tiles != nullptr;
}

std::size_t GpuWeights::bytes() const {
    std::size_t sum = table_.bytes();
    for (const DeviceBuffer& buffer : memory_) sum += buffer.bytes();
    return sum;
}

Status upload(const PackedStorage& storage, std::shared_ptr<const GpuWeights>* out) {
    GpuWeights::Tables tables;
    Bump sizes;
    GCMOE_RETURN_IF_ERROR(put_rank(storage, &sizes, &tables));
    std::vector<DeviceBuffer> memory(1);
    GCMOE_RETURN_IF_ERROR(memory[0].allocate(
        sizes.bytes(), "the packed weights of rank " + std::to_string(storage.rank)));
    Bump pieces(memory[0]);
    GCMOE_RETURN_IF_ERROR(put_rank(storage, &pieces, &tables));
    return GpuWeights::make(std::move(tables), std::move(memory), out);
}

Status find(const PackedStorage& storage, std::shared_ptr<const GpuWeights>* out) {
    int current = 0;
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&current), "cudaGetDevice"));
    if (storage.device != nullptr) {
        auto own = std::dynamic_pointer_cast<const GpuWeights>(storage.device);
        if (own == nullptr || own->device() != current) {
            return {Code::kUnsupported,
                    own == nullptr
                        ? std::string("the weights were packed for another backend")
                        : "the weights lie on device " + std::to_string(own->device()) +
                              ", the operator runs on device " + std::to_string(current)};
        }
        *out = std::move(own);
        return {};
    }
    const std::lock_guard<std::mutex> lock(storage.upload_mutex);
    auto kept = std::dynamic_pointer_cast<const GpuWeights>(storage.upload.lock());
    if (kept == nullptr || kept->device() != current) {
        GCMOE_RETURN_IF_ERROR(upload(storage, &kept));
        storage.upload = kept;
    }
    *out = std::move(kept);
    return {};
}

}  // namespace gcmoe::cuda::weights
