// Writes one safetensors file as a stream: the list of tensors first, then their bytes in that
// order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/dtype.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::checkpoint {

// A tensor to be written.
struct TensorSpec {
    std::string name;
    Dtype dtype = Dtype::kU8;
    std::vector<std::int64_t> shape;
};

// The same list, metadata and bytes give the same file, byte for byte. The header is padded with
// spaces so that the data section starts at a multiple of 8. The file appears under its name when
// finish() succeeds; before that, and after any error, nothing is there (see AtomicFile).
class SafetensorsWriter {
  public:
    // Lays the tensors out in the order of the list and writes the header.
    // Errors: kBadInput for a name that is not UTF-8, empty, reserved or there twice, a size above
    // 2^64, a tensor that would not stand at a multiple of its element size (list wider types
    // first), an unwritable path.
    static Status create(const std::string& path, const std::vector<TensorSpec>& tensors,
                         const std::map<std::string, std::string>& metadata,
                         std::unique_ptr<SafetensorsWriter>* out);

    // Appends bytes of the next tensor in the list; a tensor may come in pieces.
    // Errors: kBadInput for another name than the next one or more bytes than it has, a full disk.
    Status write(const std::string& name, const void* bytes, std::uint64_t num_bytes);

    // Callers: once, last. Errors: kBadInput if bytes of a tensor are missing, or of the disk.
    Status finish();

  private:
    struct Slot {
        std::string name;
        std::uint64_t num_bytes = 0;
    };
    SafetensorsWriter() = default;
    void skip_filled_slots();

    std::unique_ptr<AtomicFile> file_;
    std::vector<Slot> slots_;
    std::size_t slot_idx_ = 0;         // of the tensor being written
    std::uint64_t written_bytes_ = 0;  // of that tensor
};

}  // namespace gcmoe::checkpoint
