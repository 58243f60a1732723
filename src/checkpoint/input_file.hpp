// A regular file whose bytes are copied out. Not mapped: a file that shrinks under a mapping (a
// download begun again, a full network disk) ends the reader by SIGBUS wherever it stands, and no
// handler of a library can make a sentence of that. Here it is an error of the read, and what was
// read once stays what it was.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

class InputFile {
  public:
    // Errors: kBadCheckpoint with the path and the system's reason.
    static Status open(const std::string& path, std::shared_ptr<const InputFile>* out);

    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile();

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }  // when it was opened

    // Copies num_bytes bytes from the begin-th on; any thread. Callers: end within num_bytes().
    // Errors: kBadCheckpoint for a file that has become shorter, naming both sizes, or a disk that
    // fails.
    Status read(std::uint64_t begin, std::uint64_t num_bytes, void* out) const;

  private:
    InputFile(std::string path, int fd, std::uint64_t num_bytes);
    [[nodiscard]] Status shrunk(std::uint64_t end) const;

    std::string path_;
    int fd_;
    std::uint64_t num_bytes_;
};

}  // namespace gcmoe::checkpoint
