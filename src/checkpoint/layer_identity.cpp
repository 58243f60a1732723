#include "checkpoint/layer_identity.hpp"

#include <algorithm>
#include <memory>
#include <string_view>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/packed_format.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::checkpoint {
namespace {

// A hash that grows value by value; lengths count, so that no two lists run into each other.
class Fingerprint {
  public:
    void add(std::uint64_t value) { hash_ = numerics::hash_combine(hash_, value); }
    void add(std::string_view text) { add(hash_bytes(text.data(), text.size())); }
    void add(const TensorView& tensor) {
        add(tensor.name);
        add(dtype_name(tensor.dtype));
        add(tensor.shape.size());
        for (const std::int64_t dim : tensor.shape) add(static_cast<std::uint64_t>(dim));
        const std::uint64_t num_bytes = std::min(tensor.num_bytes, kFingerprintBytes);
        add(hash_bytes(tensor.bytes, num_bytes));
        add(hash_bytes(tensor.bytes + tensor.num_bytes - num_bytes, num_bytes));
    }
    [[nodiscard]] std::uint64_t value() const { return hash_; }

  private:
    std::uint64_t hash_ = 0;
};

}  // namespace

Status identify_checkpoint_layer(const std::string& folder, const ReadOptions& options,
                                 const LayerInfo& info, LayerIdentity* out) {
    std::unique_ptr<CheckpointFolder> checkpoint;
    GCMOE_RETURN_IF_ERROR(CheckpointFolder::open(folder, &checkpoint));
    Fingerprint fingerprint;
    fingerprint.add(static_cast<std::uint64_t>(options.order.value_or(GateUpOrder::kW1GateW3Up)));
    const auto& names = checkpoint->file_of_tensor();
    for (const char* experts : {"experts.", "shared_experts."}) {
        const std::string prefix = info.prefix + experts;
        for (auto entry = names.lower_bound(prefix);
             entry != names.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
            TensorView tensor;
            GCMOE_RETURN_IF_ERROR(checkpoint->tensor(entry->first, &tensor));
            fingerprint.add(tensor);
        }
    }
    *out = {info.model_type, options.layer, fingerprint.value()};
    return {};
}

LayerIdentity identify_generated_layer(const GeneratedLayer& layer, const std::string& model) {
    const Shape& shape = layer.shape;
    Fingerprint fingerprint;
    fingerprint.add("generated");
    for (const int size : {shape.hidden, shape.inter, shape.shared_inter, shape.num_experts}) {
        fingerprint.add(static_cast<std::uint64_t>(size));
    }
    fingerprint.add(layer.weight_scales);
    fingerprint.add(static_cast<std::uint64_t>(layer.biases));
    fingerprint.add(static_cast<std::uint64_t>(layer.shared_grid));
    return {model, 0, fingerprint.value()};
}

}  // namespace gcmoe::checkpoint
