// A whole file mapped read-only. Owned by shared pointers: views keep it alive after its reader is
// gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

class FileMapping {
  public:
    // Maps a regular file. An empty file maps to zero bytes.
    // Callers: the file must not shrink while it is mapped (the kernel would raise SIGBUS on a
    // read). Errors: kBadCheckpoint with the path and the system's reason.
    static Status open(const std::string& path, std::shared_ptr<const FileMapping>* out);

    FileMapping(const FileMapping&) = delete;
    FileMapping& operator=(const FileMapping&) = delete;
    ~FileMapping();

    [[nodiscard]] const std::uint8_t* bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }

  private:
    FileMapping(const std::uint8_t* bytes, std::uint64_t num_bytes)
        : bytes_(bytes), num_bytes_(num_bytes) {}

    const std::uint8_t* bytes_;
    std::uint64_t num_bytes_;
};

}  // namespace gcmoe::checkpoint
