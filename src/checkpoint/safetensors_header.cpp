#include "checkpoint/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

// Reads the entries of one file's header.
class HeaderParser {
  public:
    HeaderParser(const std::string& path, std::uint64_t data_bytes)
        : path_(path), data_bytes_(data_bytes) {}

    Status tensor(const std::string& name, const Json& entry, TensorRecord* out) const;
    Status metadata(const Json& entry, std::map<std::string, std::string>* out) const;
    Status tiling(const std::vector<TensorRecord>& tensors) const;

  private:
    Status shape(const std::string& name, const Json& value, std::vector<std::int64_t>* out) const;
    Status offsets(const std::string& name, const Json& value, TensorRecord* out) const;
    Status size(const TensorRecord& record) const;

    [[nodiscard]] Status fail(const std::string& reason) const {
        return {Code::kBadCheckpoint, fmt::format("file {}: {}", quote(path_), reason)};
    }
    [[nodiscard]] Status fail(const std::string& name, const std::string& reason) const {
        return fail(fmt::format("tensor {}: {}", quote(name), reason));
    }

    const std::string& path_;
    std::uint64_t data_bytes_;
};

Status HeaderParser::tensor(const std::string& name, const Json& entry, TensorRecord* out) const {
    if (!entry.is_object()) {
        return fail(name, fmt::format("entry {} is not an object", json_text(entry)));
    }
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!entry.contains(field)) return fail(name, fmt::format("field {} is missing", field));
    }
    if (entry.size() != 3) {
        return fail(name, fmt::format("{} has fields besides dtype, shape and data_offsets",
                                      json_text(entry)));
    }
    out->name = name;
    const Json& dtype = entry["dtype"];
    if (!dtype.is_string() || !dtype_from_name(dtype.get_ref<const std::string&>(), &out->dtype)) {
        return fail(name, fmt::format("unknown dtype {}", json_text(dtype)));
    }
    GCMOE_RETURN_IF_ERROR(shape(name, entry["shape"], &out->shape));
    GCMOE_RETURN_IF_ERROR(offsets(name, entry["data_offsets"], out));
    return size(*out);
}

Status HeaderParser::shape(const std::string& name, const Json& value,
                           std::vector<std::int64_t>* out) const {
    if (!value.is_array()) {
        return fail(name, fmt::format("shape {} is not a list", json_text(value)));
    }
    constexpr auto kMaxDim = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    for (const Json& dim : value) {
        if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > kMaxDim) {
            return fail(name, fmt::format("shape {}: dimension {} is not a count", json_text(value),
                                          json_text(dim)));
        }
        out->push_back(dim.get<std::int64_t>());
    }
    return {};
}

Status HeaderParser::offsets(const std::string& name, const Json& value, TensorRecord* out) const {
    const std::string text = json_text(value);
    if (!value.is_array() || value.size() != 2) {
        return fail(name, fmt::format("data_offsets {} is not a list of two", text));
    }
    for (const Json& offset : value) {
        if (offset.is_number_integer() && !offset.is_number_unsigned()) {
            return fail(name, fmt::format("data_offsets {} are negative", text));
        }
        if (!offset.is_number_unsigned()) {
            return fail(name, fmt::format("data_offsets {} are not integers", text));
        }
    }
    out->begin_bytes = value[0].get<std::uint64_t>();
    out->end_bytes = value[1].get<std::uint64_t>();
    if (out->end_bytes < out->begin_bytes) {
        return fail(name, fmt::format("data_offsets {} are inverted", text));
    }
    if (out->end_bytes > data_bytes_) {
        return fail(name, fmt::format("data_offsets {} end past the {} data bytes of the file",
                                      text, data_bytes_));
    }
    return {};
}

Status HeaderParser::size(const TensorRecord& record) const {
    std::uint64_t num_bytes = 0;
    const std::string type =
        fmt::format("{} {}", dtype_name(record.dtype), shape_text(record.shape));
    if (!tensor_bytes(record.dtype, record.shape, &num_bytes)) {
        return fail(record.name, fmt::format("{} has more than 2^64 bytes", type));
    }
    if (num_bytes != record.end_bytes - record.begin_bytes) {
        return fail(record.name, fmt::format("{} has {} bytes, but data_offsets [{}, {}] hold {}",
                                             type, num_bytes, record.begin_bytes, record.end_bytes,
                                             record.end_bytes - record.begin_bytes));
    }
    return {};
}

Status HeaderParser::metadata(const Json& entry, std::map<std::string, std::string>* out) const {
    if (!entry.is_object()) {
        return fail(fmt::format("{} {} is not an object", kMetadataName, json_text(entry)));
    }
    for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) {
            return fail(fmt::format("{}: value {} of {} is not a string", kMetadataName,
                                    json_text(value), quote(key)));
        }
        (*out)[key] = value.get<std::string>();
    }
    return {};
}

Status HeaderParser::tiling(const std::vector<TensorRecord>& tensors) const {
    std::uint64_t position = 0;
    const TensorRecord* previous = nullptr;
    for (const TensorRecord& record : tensors) {
        if (record.begin_bytes < position) {
            return fail(record.name,
                        fmt::format("data_offsets [{}, {}] overlap those of {}, "
                                    "[{}, {}]",
                                    record.begin_bytes, record.end_bytes, quote(previous->name),
                                    previous->begin_bytes, previous->end_bytes));
        }
        if (record.begin_bytes > position) {
            return fail(record.name,
                        fmt::format("a hole before it: data bytes [{}, {}) belong to no tensor",
                                    position, record.begin_bytes));
        }
        position = record.end_bytes;
        previous = &record;
    }
    if (position != data_bytes_) {
        const std::string last = previous == nullptr ? "none" : quote(previous->name);
        return fail(fmt::format(
            "a hole at the end: data bytes [{}, {}) belong to no tensor (last tensor: {})",
            position, data_bytes_, last));
    }
    return {};
}

}  // namespace

bool tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape, std::uint64_t* out) {
    std::uint64_t num_bytes = dtype_bytes(dtype);
    bool empty = false;
    bool overflow = false;
    for (const std::int64_t dim : shape) {
        if (dim < 0) return false;
        if (dim == 0) empty = true;
        overflow = overflow ||
                   __builtin_mul_overflow(num_bytes, static_cast<std::uint64_t>(dim), &num_bytes);
    }
    if (overflow && !empty) return false;
    *out = empty ? 0 : num_bytes;
    return true;
}

Status parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                const std::string& path, SafetensorsHeader* out) {
    const std::string where = fmt::format("file {}: header", quote(path));
    Json root;
    GCMOE_RETURN_IF_ERROR(parse_json(text, where, &root));
    if (!root.is_object()) {
        return {Code::kBadCheckpoint,
                fmt::format("{} {} is not a JSON object", where, json_text(root))};
    }
    const HeaderParser parser(path, data_bytes);
    *out = {};
    for (const auto& [name, entry] : root.items()) {
        if (name == kMetadataName) {
            GCMOE_RETURN_IF_ERROR(parser.metadata(entry, &out->metadata));
        } else {
            GCMOE_RETURN_IF_ERROR(parser.tensor(name, entry, &out->tensors.emplace_back()));
        }
    }
    std::sort(out->tensors.begin(), out->tensors.end(),
              [](const TensorRecord& left, const TensorRecord& right) {
                  return std::tie(left.begin_bytes, left.end_bytes, left.name) <
                         std::tie(right.begin_bytes, right.end_bytes, right.name);
              });
    return parser.tiling(out->tensors);
}

}  // namespace gcmoe::checkpoint
