// One safetensors file: names in, tensors out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/input_file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// What one tensor is, and its bytes on request: row-major, little-endian. Outlives its reader.
struct StoredTensor {
    std::string name;
    std::string path;  // of the file, for error sentences
    Dtype dtype = Dtype::kU8;
    std::vector<std::int64_t> shape;
    std::uint64_t num_bytes = 0;
    std::shared_ptr<const InputFile> file;
    std::uint64_t begin_bytes = 0;  // in the file

    // num_wanted bytes from the begin-th on. Callers: within num_bytes. Errors: InputFile::read.
    Status read(std::uint64_t begin, std::uint64_t num_wanted, void* out) const {
        return file->read(begin_bytes + begin, num_wanted, out);
    }
};

class SafetensorsFile {
  public:
    // Opens the file and proves its header; tensor bytes are not touched.
    // Errors: kBadCheckpoint with the path, and tensor and values where they are at fault.
    static Status open(const std::string& path, std::unique_ptr<SafetensorsFile>* out);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const std::vector<TensorRecord>& tensors() const { return header_.tensors; }
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const {
        return header_.metadata;
    }
    [[nodiscard]] bool contains(const std::string& name) const {
        return record_idx_of_name_.count(name) != 0;
    }

    // Errors: kBadCheckpoint if the file has no tensor of this name.
    Status tensor(const std::string& name, StoredTensor* out) const;

  private:
    SafetensorsFile() = default;

    std::string path_;
    std::shared_ptr<const InputFile> file_;
    std::uint64_t data_begin_ = 0;  // of the data section
    SafetensorsHeader header_;
    std::unordered_map<std::string, std::size_t> record_idx_of_name_;
};

}  // namespace gcmoe::checkpoint
