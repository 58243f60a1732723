#include "cuda/weights/compare_with_host.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/math.hpp"
#include "cuda/weights/gpu_weights.hpp"
#include "layout/pack_row.hpp"

namespace gcmoe::cuda::weights {
namespace {

using device::cuda_status;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// An array of the host and its twin on the device.
struct Pair {
    std::string name;  // "expert 3 gate nibbles"
    const void* host;
    const void* device;
    std::size_t bytes;
};

Status compare(const Pair& pair) {
    if (pair.bytes == 0 || (pair.host == nullptr && pair.device == nullptr)) return {};
    if (pair.host == nullptr || pair.device == nullptr) {
        return {Code::kInternal,
                pair.name + " exists only on the " + (pair.host == nullptr ? "device" : "host")};
    }
    std::vector<unsigned char> copy(pair.bytes);
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaMemcpy(copy.data(), pair.device, pair.bytes, cudaMemcpyDeviceToHost),
                    "reading " + pair.name + " back"));
    const auto* host = static_cast<const unsigned char*>(pair.host);
    if (std::memcmp(copy.data(), host, pair.bytes) == 0) return {};
    const auto at = std::mismatch(host, host + pair.bytes, copy.data()).first - host;
    return {Code::kInternal,
            pair.name + " byte " + std::to_string(at) + " of " + std::to_string(pair.bytes) + ": " +
                std::to_string(host[at]) + " on the host, " +
                std::to_string(copy[static_cast<std::size_t>(at)]) + " on the device"};
}

Status compare_view(const std::string& name, const Mxfp4View& host, const Mxfp4View& device) {
    const std::size_t elements = layout::index_of(host.rows, host.cols, 0);
    GCMOE_RETURN_IF_ERROR(compare({name + " nibbles", host.nibbles, device.nibbles, elements / 2}));
    return compare({name + " scales", host.scales, device.scales, elements / 32});
}

Status compare_fp8_view(const std::string& name, const Fp8View& host, const Fp8View& device) {
    const layout::GridSteps steps = layout::grid_steps(host.grid);
    const std::size_t scales = layout::index_of(ceil_div(host.rows, steps.rows_per_scale),
                                                ceil_div(host.cols, steps.cols_per_scale), 0);
    GCMOE_RETURN_IF_ERROR(compare(
        {name + " codes", host.codes, device.codes, layout::index_of(host.rows, host.cols, 0)}));
    return compare({name + " scales", host.scales, device.scales,
                    scales * (steps.is_fp32 ? sizeof(float) : 1)});
}

Status compare_expert(const std::string& name, WeightSource& on_host, WeightSource& on_device,
                      int expert_idx) {
    ExpertBytes host;
    ExpertBytes device;
    GCMOE_RETURN_IF_ERROR(on_host.expert(expert_idx, &host));
    GCMOE_RETURN_IF_ERROR(on_device.expert(expert_idx, &device));
    GCMOE_RETURN_IF_ERROR(compare_view(name + " gate", host.gate, device.gate));
    GCMOE_RETURN_IF_ERROR(compare_view(name + " up", host.up, device.up));
    GCMOE_RETURN_IF_ERROR(compare_view(name + " down", host.down, device.down));
    const std::size_t inter = size_of(host.gate.rows) * sizeof(float);
    const std::size_t hidden = size_of(host.down.rows) * sizeof(float);
    GCMOE_RETURN_IF_ERROR(compare({name + " gate bias", host.gate_bias, device.gate_bias, inter}));
    GCMOE_RETURN_IF_ERROR(compare({name + " up bias", host.up_bias, device.up_bias, inter}));
    return compare({name + " down bias", host.down_bias, device.down_bias, hidden});
}

Status compare_matrix(const std::string& name, const layout::PackedMatrix& host,
                      const device::GpuMatrix& gpu) {
    const bool row_form = host.form == layout::PackedMatrix::DecodeForm::kRowFactor;
    const std::size_t factor_bytes = host.factors.size() * sizeof(float);
    const void* bias = host.bias.empty() ? nullptr : host.bias.data();
    GCMOE_RETURN_IF_ERROR(
        compare({name + " tiles", host.tiles.data(), gpu.tiles, host.tiles.size()}));
    GCMOE_RETURN_IF_ERROR(compare({name + " row factors", row_form ? host.factors.data() : nullptr,
                                   gpu.row_factors, factor_bytes}));
    GCMOE_RETURN_IF_ERROR(
        compare({name + " chunk factors", row_form ? nullptr : host.factors.data(),
                 gpu.chunk_factors, factor_bytes}));
    return compare({name + " packed bias", bias, gpu.bias, size_of(host.rows) * sizeof(float)});
}

Status compare_fp8_matrix(const std::string& name, const layout::PackedFp8Matrix& host,
                          const device::GpuFp8Matrix& gpu) {
    if (gpu.groups != static_cast<std::uint32_t>(host.scale_groups_per_chunk)) {
        return {Code::kInternal, name + " has " + std::to_string(gpu.groups) +
                                     " scales per K128 on the device, " +
                                     std::to_string(host.scale_groups_per_chunk) + " on the host"};
    }
    GCMOE_RETURN_IF_ERROR(
        compare({name + " tiles", host.tiles.data(), gpu.tiles, host.tiles.size()}));
    return compare({name + " packed scales", host.scales.data(), gpu.scales,
                    host.scales.size() * sizeof(float)});
}

Status compare_packed(const PackedStorage& host, const PackedStorage& packed) {
    std::shared_ptr<const GpuWeights> gpu;
    GCMOE_RETURN_IF_ERROR(find(packed, &gpu));
    for (std::size_t i = 0; i < host.experts.size(); ++i) {
        const layout::PackedExpert* expert = host.experts[i].get();
        if (expert == nullptr) continue;
        const std::string name =
            "rank " + std::to_string(host.rank) + " local expert " + std::to_string(i);
        GCMOE_RETURN_IF_ERROR(
            compare_matrix(name + " first", expert->first, gpu->host_experts()[i].first));
        GCMOE_RETURN_IF_ERROR(
            compare_matrix(name + " second", expert->second, gpu->host_experts()[i].second));
    }
    if (!host.has_shared) return {};
    GCMOE_RETURN_IF_ERROR(
        compare_fp8_matrix("shared expert first", host.shared_first, gpu->shared_first()));
    return compare_fp8_matrix("shared expert second", host.shared_second, gpu->shared_second());
}

Status compare_shared(WeightSource& on_host, WeightSource& on_device) {
    SharedExpertBytes host;
    SharedExpertBytes device;
    GCMOE_RETURN_IF_ERROR(on_host.shared_expert(&host));
    GCMOE_RETURN_IF_ERROR(on_device.shared_expert(&device));
    GCMOE_RETURN_IF_ERROR(compare_fp8_view("shared expert gate", host.gate, device.gate));
    GCMOE_RETURN_IF_ERROR(compare_fp8_view("shared expert up", host.up, device.up));
    return compare_fp8_view("shared expert down", host.down, device.down);
}

}  // namespace

Status compare_with_host(const checkpoint::GeneratedLayer& layer,
                         const checkpoint::PaddedSizes& sizes, WeightSource& on_device,
                         const PackedWeights& packed, const std::vector<int>& expert_ids) {
    std::unique_ptr<WeightSource> plain;
    std::unique_ptr<WeightSource> on_host;
    GCMOE_RETURN_IF_ERROR(checkpoint::open_generated_layer(layer, &plain));
    GCMOE_RETURN_IF_ERROR(checkpoint::pad_source(std::move(plain), sizes, &on_host));
    for (const int id : expert_ids) {
        GCMOE_RETURN_IF_ERROR(
            compare_expert("expert " + std::to_string(id), *on_host, on_device, id));
    }
    const Shape& shape = packed.storage().shape;
    if (shape.shared_inter > 0) GCMOE_RETURN_IF_ERROR(compare_shared(*on_host, on_device));
    PackOptions options;
    options.only_experts = expert_ids;
    std::shared_ptr<const PackedWeights> host_packed;
    GCMOE_RETURN_IF_ERROR(PackedWeights::pack(*on_host, shape, packed.storage().rank, options,
                                              &host_packed, nullptr));
    return compare_packed(host_packed->storage(), packed.storage());
}

}  // namespace gcmoe::cuda::weights
