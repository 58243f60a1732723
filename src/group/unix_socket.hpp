// Packets with at most one file descriptor between processes of one user on one host. Every wait
// has a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::group {

// When a wait ends. 0 seconds = never; negative or not a number = it has ended.
class Deadline {
  public:
    explicit Deadline(double seconds);
    [[nodiscard]] bool passed() const { return left_s() <= 0; }
    // Seconds that are left; a large number without a deadline.
    [[nodiscard]] double left_s() const;
    // For poll(): milliseconds rounded up, at most a second, so that callers look around.
    [[nodiscard]] int poll_ms() const;

  private:
    using Clock = std::chrono::steady_clock;
    bool never_;
    Clock::time_point end_;
};

using Bytes = std::vector<std::uint8_t>;

// The longest packet.
inline constexpr std::size_t kMostPacketBytes = 64 * 1024;

// The longest path of a socket, set by the kernel (sockaddr_un).
inline constexpr std::size_t kMostPathBytes = 107;

// Errors: kUnsupported with path and reason.
Status listen_at(const std::string& path, UniqueFd* out);
// The next connection that waits, if it is of this user; else an empty descriptor. Errors:
// kUnsupported: this process or machine has no more descriptors or memory; the connection waits on.
Status accept_from(int listener, UniqueFd* out);
// An empty descriptor if nobody listens there, or the listener is of another user.
UniqueFd connect_to(const std::string& path);

// The other end is of this user (SO_PEERCRED: the kernel's word, not the peer's).
[[nodiscard]] bool is_same_user(int socket);
// The other end has closed, or its process is gone.
[[nodiscard]] bool has_hung_up(int socket);

// `attached` = -1: none. False: the other end is gone, or the deadline has passed.
bool send_packet(int socket, const Bytes& bytes, int attached, const Deadline& deadline);

enum class Received { kPacket, kClosed, kLate };
// A packet that is cut off, or carries more than one descriptor, counts as a closed connection.
Received receive_packet(int socket, const Deadline& deadline, Bytes* bytes, UniqueFd* attached);

}  // namespace gcmoe::group
