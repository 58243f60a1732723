// Memory that several processes map: an anonymous file that goes with its last user. Its size is
// sealed, so that nobody can cut it off under a peer's feet.
#pragma once

#include <cstdint>

#include "base/unique_fd.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::cpu {

class SharedMemory {
  public:
    static constexpr const char* kKind = "memfd";

    // Zeroed, and all of it there: a machine that has not so much refuses here, not at the first
    // touch.
    // Errors: kUnsupported with bytes and reason.
    static Status create(std::uint64_t bytes, SharedMemory* out);
    // Maps a peer's memory after a look at what it is. Errors: kBadConfig (another kind, another
    // size than `bytes`, or a size that its owner can still change), kUnsupported.
    static Status map(const SharedHandle& handle, std::uint64_t bytes, SharedMemory* out);

    SharedMemory() = default;
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory();

    [[nodiscard]] std::uint8_t* data() const { return data_; }
    [[nodiscard]] std::uint64_t size() const { return bytes_; }
    // Another descriptor of the same memory, to hand over. Errors: kUnsupported (no descriptor).
    Status share(SharedHandle* out) const;

  private:
    UniqueFd fd_;  // of memory made here
    std::uint8_t* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace gcmoe::cpu
