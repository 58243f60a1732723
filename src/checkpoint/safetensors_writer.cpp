#include "checkpoint/safetensors_writer.hpp"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>

#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr std::uint64_t kHeaderAlignBytes = 8;

Status bad_tensor(const std::string& path, const std::string& name, const std::string& reason) {
    return {Code::kBadInput,
            fmt::format("file {}: tensor {}: {}", quote(path), quote(name), reason)};
}

// Writes `text` as a JSON string; false if it is not UTF-8.
bool append_json_string(const std::string& text, std::string* out) {
    try {
        *out += Json(text).dump();
    } catch (const Json::exception&) {
        return false;
    }
    return true;
}

Status append_metadata(const std::string& path, const std::map<std::string, std::string>& metadata,
                       std::string* text) {
    *text += fmt::format("\"{}\":{{", kMetadataName);
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
        *text += comma;
        const bool key_is_utf8 = append_json_string(key, text);
        *text += ':';
        if (!key_is_utf8 || !append_json_string(value, text)) {
            return {Code::kBadInput, fmt::format("file {}: metadata {}: {} is not UTF-8",
                                                 quote(path), quote(key), quote(value))};
        }
        comma = ",";
    }
    *text += '}';
    return {};
}

// Appends the entry of one tensor that starts at *position, and moves *position to its end.
Status append_tensor(const std::string& path, const TensorSpec& tensor, std::uint64_t* position,
                     std::string* text) {
    std::uint64_t num_bytes = 0;
    std::uint64_t end_bytes = 0;
    if (!tensor_bytes(tensor.dtype, tensor.shape, &num_bytes) ||
        __builtin_add_overflow(*position, num_bytes, &end_bytes)) {
        return bad_tensor(
            path, tensor.name,
            fmt::format("shape {} is negative or beyond 2^64 bytes", shape_text(tensor.shape)));
    }
    if (*position % dtype_bytes(tensor.dtype) != 0) {
        return bad_tensor(
            path, tensor.name,
            fmt::format("{} would stand at data byte {}, not a multiple of {}: list "
                        "wider types first",
                        dtype_name(tensor.dtype), *position, dtype_bytes(tensor.dtype)));
    }
    if (!append_json_string(tensor.name, text)) {
        return bad_tensor(path, tensor.name, "the name is not UTF-8");
    }
    *text += fmt::format(R"(:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                         dtype_name(tensor.dtype), Json(tensor.shape).dump(), *position, end_bytes);
    *position = end_bytes;
    return {};
}

Status header_text(const std::string& path, const std::vector<TensorSpec>& tensors,
                   const std::map<std::string, std::string>& metadata, std::string* text) {
    *text = "{";
    const char* comma = "";
    if (!metadata.empty()) {
        GCMOE_RETURN_IF_ERROR(append_metadata(path, metadata, text));
        comma = ",";
    }
    std::set<std::string> names;
    std::uint64_t position = 0;
    for (const TensorSpec& tensor : tensors) {
        if (tensor.name.empty() || tensor.name == kMetadataName) {
            return bad_tensor(path, tensor.name, "the name is empty or reserved");
        }
        if (!names.insert(tensor.name).second) {
            return bad_tensor(path, tensor.name, "stands twice in the list");
        }
        *text += comma;
        GCMOE_RETURN_IF_ERROR(append_tensor(path, tensor, &position, text));
        comma = ",";
    }
    *text += '}';
    while (text->size() % kHeaderAlignBytes != 0) *text += ' ';
    if (text->size() > kMaxJsonBytes) {
        return {Code::kBadInput, fmt::format("file {}: a header of {} bytes is above the cap of {}",
                                             quote(path), text->size(), kMaxJsonBytes)};
    }
    return {};
}

}  // namespace

Status SafetensorsWriter::create(const std::string& path, const std::vector<TensorSpec>& tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 std::unique_ptr<SafetensorsWriter>* out) {
    std::string header;
    GCMOE_RETURN_IF_ERROR(header_text(path, tensors, metadata, &header));
    std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
    for (const TensorSpec& tensor : tensors) {
        Slot slot{tensor.name, 0};
        if (!tensor_bytes(tensor.dtype, tensor.shape, &slot.num_bytes)) {
            return bad_tensor(path, tensor.name, "has no size");
        }
        writer->slots_.push_back(std::move(slot));
    }
    GCMOE_RETURN_IF_ERROR(AtomicFile::create(path, &writer->file_));
    std::array<std::uint8_t, 8> length{};
    for (std::size_t byte_idx = 0; byte_idx < length.size(); ++byte_idx) {
        length[byte_idx] = static_cast<std::uint8_t>(header.size() >> (8 * byte_idx));
    }
    GCMOE_RETURN_IF_ERROR(writer->file_->write(length.data(), length.size()));
    GCMOE_RETURN_IF_ERROR(writer->file_->write(header.data(), header.size()));
    writer->skip_filled_slots();
    *out = std::move(writer);
    return {};
}

// Tensors without bytes need no write call.
void SafetensorsWriter::skip_filled_slots() {
    while (slot_idx_ < slots_.size() && written_bytes_ == slots_[slot_idx_].num_bytes) {
        ++slot_idx_;
        written_bytes_ = 0;
    }
}

Status SafetensorsWriter::write(const std::string& name, const void* bytes,
                                std::uint64_t num_bytes) {
    if (num_bytes == 0) return {};
    if (slot_idx_ == slots_.size() || slots_[slot_idx_].name != name) {
        const std::string next =
            slot_idx_ == slots_.size() ? "the end" : quote(slots_[slot_idx_].name);
        return bad_tensor(file_->path(), name,
                          fmt::format("written out of turn, next is {}", next));
    }
    const Slot& slot = slots_[slot_idx_];
    if (num_bytes > slot.num_bytes - written_bytes_) {
        return bad_tensor(file_->path(), name,
                          fmt::format("{} bytes after {} are more than its {}", num_bytes,
                                      written_bytes_, slot.num_bytes));
    }
    GCMOE_RETURN_IF_ERROR(file_->write(bytes, num_bytes));
    written_bytes_ += num_bytes;
    skip_filled_slots();
    return {};
}

Status SafetensorsWriter::finish() {
    if (slot_idx_ < slots_.size()) {
        const Slot& slot = slots_[slot_idx_];
        return bad_tensor(
            file_->path(), slot.name,
            fmt::format("finished after {} of its {} bytes", written_bytes_, slot.num_bytes));
    }
    return file_->commit();
}

}  // namespace gcmoe::checkpoint
