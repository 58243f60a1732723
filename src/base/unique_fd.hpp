// A file descriptor that is closed with its owner, and one that stands for memory of another
// process.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace gcmoe {

class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] bool is_open() const { return fd_ >= 0; }

  private:
    int fd_ = -1;
};

// Memory that processes hand over: what it is, how large, and the descriptor that maps it. Whoever
// takes it over checks all three before it maps.
struct SharedHandle {
    std::string kind;  // "memfd"; empty: none
    std::uint64_t bytes = 0;
    UniqueFd fd;
};

}  // namespace gcmoe
