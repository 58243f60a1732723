// A file that appears under its name whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// Bytes go to "<path>.partial-<process>-<count>" in the same folder; commit renames it to path and
// replaces what stood there. Without a commit the partial file is removed.
// Errors: kBadInput with the path and the system's reason (no such folder, no permission, disk
// full).
class AtomicFile {
  public:
    static Status create(const std::string& path, std::unique_ptr<AtomicFile>* out);

    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();

    // Appends. After an error only destruction makes sense: later calls return the same error.
    Status write(const void* bytes, std::uint64_t num_bytes);

    // Flushes to the device and renames. Callers: once, last.
    Status commit();

    [[nodiscard]] const std::string& path() const { return path_; }
    // Where the bytes written so far can be read; empty after commit.
    [[nodiscard]] const std::string& partial_path() const { return partial_path_; }

  private:
    AtomicFile(std::string path, std::string partial_path, int fd);
    Status fail(const char* action, int error);
    void discard();

    std::string path_;
    std::string partial_path_;
    int fd_;
    Status fault_;
};

// Writes a whole text file as one commit.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace gcmoe::checkpoint
