#include "checkpoint/model_config.hpp"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr int kMaxCount = 1 << 24;  // far above every real size, far below an overflow

// The objects of one config.json in which a field may stand, first match wins.
class ConfigReader {
  public:
    ConfigReader(const std::string& path, const Json& root) : path_(path) {
        const auto text_config = root.find("text_config");
        if (text_config != root.end() && text_config->is_object()) {
            objects_.push_back(&*text_config);
        }
        objects_.push_back(&root);
    }

    [[nodiscard]] const Json* find(const char* field) const {
        for (const Json* object : objects_) {
            const auto found = object->find(field);
            if (found != object->end() && !found->is_null()) return &*found;
        }
        return nullptr;
    }

    Status read(const char* field, std::optional<int>* out) const {
        const Json* value = find(field);
        if (value == nullptr) return {};
        int count = 0;
        GCMOE_RETURN_IF_ERROR(count_of(field, *value, &count));
        *out = count;
        return {};
    }

    Status read(const char* field, std::optional<float>* out) const {
        const Json* value = find(field);
        if (value == nullptr) return {};
        if (!value->is_number() || !std::isfinite(value->get<float>())) {
            return fail(field, *value, "a finite number");
        }
        *out = value->get<float>();
        return {};
    }

    Status read(const char* field, std::string* out) const {
        const Json* value = find(field);
        if (value == nullptr) return {};
        if (!value->is_string()) return fail(field, *value, "a string");
        *out = value->get<std::string>();
        return {};
    }

    Status read_block_size(std::optional<std::array<int, 2>>* out) const {
        constexpr const char* kField = "weight_block_size";
        const Json* value = find(kField);
        const Json* quantization = find("quantization_config");
        if (value == nullptr && quantization != nullptr && quantization->is_object()) {
            const auto found = quantization->find(kField);
            if (found != quantization->end() && !found->is_null()) value = &*found;
        }
        if (value == nullptr) return {};
        if (!value->is_array() || value->size() != 2) return fail(kField, *value, "two counts");
        std::array<int, 2> block{};
        for (std::size_t idx = 0; idx < block.size(); ++idx) {
            GCMOE_RETURN_IF_ERROR(count_of(kField, (*value)[idx], &block[idx]));
        }
        *out = block;
        return {};
    }

  private:
    Status count_of(const char* field, const Json& value, int* out) const {
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxCount) {
            return fail(field, value, fmt::format("a count of at most {}", kMaxCount));
        }
        *out = value.get<int>();
        return {};
    }

    [[nodiscard]] Status fail(const char* field, const Json& value, const std::string& need) const {
        return {Code::kBadCheckpoint, fmt::format("file {}: {} = {}, needs {}", quote(path_), field,
                                                  json_text(value), need)};
    }

    const std::string& path_;
    std::vector<const Json*> objects_;
};

Status read_sizes(const ConfigReader& reader, ModelConfig* out) {
    GCMOE_RETURN_IF_ERROR(reader.read("hidden_size", &out->hidden_size));
    GCMOE_RETURN_IF_ERROR(reader.read("moe_intermediate_size", &out->moe_intermediate_size));
    GCMOE_RETURN_IF_ERROR(reader.read("intermediate_size", &out->intermediate_size));
    GCMOE_RETURN_IF_ERROR(reader.read("n_routed_experts", &out->n_routed_experts));
    GCMOE_RETURN_IF_ERROR(reader.read("num_local_experts", &out->num_local_experts));
    GCMOE_RETURN_IF_ERROR(reader.read("num_experts", &out->num_experts));
    GCMOE_RETURN_IF_ERROR(reader.read("num_experts_per_tok", &out->num_experts_per_tok));
    GCMOE_RETURN_IF_ERROR(reader.read("n_shared_experts", &out->n_shared_experts));
    return reader.read("shared_expert_intermediate_size", &out->shared_expert_intermediate_size);
}

Status read_formula(const ConfigReader& reader, ModelConfig* out) {
    GCMOE_RETURN_IF_ERROR(reader.read("swiglu_limit", &out->swiglu_limit));
    GCMOE_RETURN_IF_ERROR(reader.read("swiglu_alpha", &out->swiglu_alpha));
    GCMOE_RETURN_IF_ERROR(reader.read("swiglu_beta", &out->swiglu_beta));
    return reader.read("routed_scaling_factor", &out->routed_scaling_factor);
}

}  // namespace

Status read_model_config(const std::string& folder, ModelConfig* out) {
    *out = {};
    out->path = folder + "/config.json";
    Json root;
    GCMOE_RETURN_IF_ERROR(read_json_file(out->path, &root));
    const ConfigReader reader(out->path, root);
    GCMOE_RETURN_IF_ERROR(reader.read("model_type", &out->model_type));
    if (const auto found = root.find("model_type"); found != root.end() && found->is_string()) {
        out->model_type = found->get<std::string>();  // the family, not its text part
    }
    GCMOE_RETURN_IF_ERROR(reader.read("expert_dtype", &out->expert_dtype));
    GCMOE_RETURN_IF_ERROR(read_sizes(reader, out));
    GCMOE_RETURN_IF_ERROR(read_formula(reader, out));
    return reader.read_block_size(&out->weight_block_size);
}

}  // namespace gcmoe::checkpoint
