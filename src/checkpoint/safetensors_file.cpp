#include "checkpoint/safetensors_file.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "checkpoint/json_text.hpp"
#include "checkpoint/message.hpp"

namespace gcmoe::checkpoint {
namespace {

constexpr std::uint64_t kLengthBytes = 8;  // little-endian length of the header, before the header

Status header_length(const InputFile& file, std::uint64_t* out) {
    const auto fail = [&file](const std::string& reason) {
        return Status(Code::kBadCheckpoint, fmt::format("file {}: {}", quote(file.path()), reason));
    };
    if (file.num_bytes() < kLengthBytes) {
        return fail(fmt::format("{} bytes, shorter than the {} bytes of the header length",
                                file.num_bytes(), kLengthBytes));
    }
    std::uint8_t bytes[kLengthBytes];
    GCMOE_RETURN_IF_ERROR(file.read(0, kLengthBytes, bytes));
    std::uint64_t length = 0;
    for (std::uint64_t byte_idx = 0; byte_idx < kLengthBytes; ++byte_idx) {
        length |= static_cast<std::uint64_t>(bytes[byte_idx]) << (8 * byte_idx);
    }
    if (length > file.num_bytes() - kLengthBytes) {
        return fail(fmt::format("header length {} is larger than the file ({} bytes)", length,
                                file.num_bytes()));
    }
    if (length > kMaxJsonBytes) {
        return fail(fmt::format("header length {} is above the cap of {}", length, kMaxJsonBytes));
    }
    *out = length;
    return {};
}

}  // namespace

Status SafetensorsFile::open(const std::string& path, std::unique_ptr<SafetensorsFile>* out) {
    std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
    file->path_ = path;
    GCMOE_RETURN_IF_ERROR(InputFile::open(path, &file->file_));
    const InputFile& bytes = *file->file_;
    std::uint64_t length = 0;
    GCMOE_RETURN_IF_ERROR(header_length(bytes, &length));
    std::string text(length, '\0');
    GCMOE_RETURN_IF_ERROR(bytes.read(kLengthBytes, length, text.data()));
    file->data_begin_ = kLengthBytes + length;
    GCMOE_RETURN_IF_ERROR(parse_safetensors_header(text, bytes.num_bytes() - file->data_begin_,
                                                   path, &file->header_));
    for (std::size_t idx = 0; idx < file->header_.tensors.size(); ++idx) {
        file->record_idx_of_name_[file->header_.tensors[idx].name] = idx;
    }
    *out = std::move(file);
    return {};
}

Status SafetensorsFile::tensor(const std::string& name, StoredTensor* out) const {
    const auto found = record_idx_of_name_.find(name);
    if (found == record_idx_of_name_.end()) {
        return {Code::kBadCheckpoint,
                fmt::format("file {}: has no tensor {}", quote(path_), quote(name))};
    }
    const TensorRecord& record = header_.tensors[found->second];
    out->name = record.name;
    out->path = path_;
    out->dtype = record.dtype;
    out->shape = record.shape;
    out->num_bytes = record.end_bytes - record.begin_bytes;
    out->file = file_;
    out->begin_bytes = data_begin_ + record.begin_bytes;
    return {};
}

}  // namespace gcmoe::checkpoint
