// One safetensors file, memory-mapped: names in, views out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/file_mapping.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// The bytes of one tensor: row-major, little-endian, as aligned as the file has them (a wide type
// may stand at an odd address). keep_alive owns the mapping; the view outlives its reader.
struct TensorView {
    std::string name;
    std::string path;  // of the file, for error sentences
    Dtype dtype = Dtype::kU8;
    std::vector<std::int64_t> shape;
    const std::uint8_t* bytes = nullptr;
    std::uint64_t num_bytes = 0;
    std::shared_ptr<const void> keep_alive;
};

class SafetensorsFile {
  public:
    // Maps the file and proves its header; tensor bytes are not touched.
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
    Status tensor(const std::string& name, TensorView* out) const;

  private:
    SafetensorsFile() = default;

    std::string path_;
    std::shared_ptr<const FileMapping> mapping_;
    const std::uint8_t* data_ = nullptr;  // the data section
    SafetensorsHeader header_;
    std::unordered_map<std::string, std::size_t> record_idx_of_name_;
};

}  // namespace gcmoe::checkpoint
