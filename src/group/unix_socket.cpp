#include "group/unix_socket.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

namespace gcmoe::group {
namespace {

constexpr int kBacklog = 512;  // every rank's connections, also those that were given up
constexpr double kForEver = 1e9;
// Between two tries where the kernel gives no event to wait for.
constexpr std::chrono::milliseconds kRetry{1};

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), std::min(path.size(), kMostPathBytes));
    return address;
}

UniqueFd make_socket() {
    return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Room for one descriptor in a message's control data.
union ControlData {
    cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

// Takes every descriptor of a message; true if there was at most one.
bool take_descriptors(msghdr* message, UniqueFd* attached) {
    int count = 0;
    for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t bytes = part->cmsg_len - CMSG_LEN(0);
        for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int), ++count) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
            *attached = UniqueFd(fd);
        }
    }
    return count <= 1 && (message->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
}

void wait_for(int socket, short events, const Deadline& deadline) {
    pollfd one{socket, events, 0};
    ::poll(&one, 1, deadline.poll_ms());
}

}  // namespace

Deadline::Deadline(double seconds)
    : never_(seconds == 0 || seconds >= kForEver),
      end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                              !never_ && seconds > 0 ? seconds : 0))) {}

double Deadline::left_s() const {
    if (never_) return kForEver;
    return std::chrono::duration<double>(end_ - Clock::now()).count();
}

int Deadline::poll_ms() const {
    return static_cast<int>(std::ceil(std::clamp(left_s(), 0.0, 1.0) * 1000));
}

Status listen_at(const std::string& path, UniqueFd* out) {
    UniqueFd socket = make_socket();
    const sockaddr_un address = address_of(path);
    if (!socket.is_open() ||
        ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
        return {Code::kUnsupported,
                fmt::format("socket '{}': {}", path, std::generic_category().message(errno))};
    }
    *out = std::move(socket);
    return {};
}

bool is_same_user(int socket) {
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
           peer.uid == ::geteuid();
}

Status accept_from(int listener, UniqueFd* out) {
    *out = UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (out->is_open()) {
        if (!is_same_user(out->get())) *out = UniqueFd();
        return {};
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // Not through std::error_category: UBSan needs a descriptor to judge a virtual call.
        char text[128];
        return {Code::kUnsupported, std::string("a connection cannot be taken: ") +
                                        ::strerror_r(errno, text, sizeof(text))};
    }
    return {};
}

UniqueFd connect_to(const std::string& path) {
    UniqueFd socket = make_socket();
    const sockaddr_un address = address_of(path);
    if (!socket.is_open() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                       sizeof(address)) != 0) {
        return {};
    }
    if (!is_same_user(socket.get())) return {};
    return socket;
}

bool has_hung_up(int socket) {
    pollfd one{socket, POLLRDHUP, 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool send_packet(int socket, const Bytes& bytes, int attached, const Deadline& deadline) {
    iovec part{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
    ControlData control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (attached >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &attached, sizeof(attached));
    }
    for (;;) {
        if (::sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return true;
        if (deadline.passed()) return false;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            wait_for(socket, POLLOUT, deadline);
        } else if (errno == ETOOMANYREFS || errno == ENOBUFS) {
            std::this_thread::sleep_for(kRetry);  // until receivers have taken what is under way
        } else if (errno != EINTR) {
            return false;
        }
    }
}

Received receive_packet(int socket, const Deadline& deadline, Bytes* bytes, UniqueFd* attached) {
    bytes->resize(kMostPacketBytes);
    *attached = UniqueFd();
    for (;;) {
        iovec part{bytes->data(), bytes->size()};
        ControlData control{};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (got > 0) {
            bytes->resize(static_cast<std::size_t>(got));
            return take_descriptors(&message, attached) ? Received::kPacket : Received::kClosed;
        }
        if (got == 0) return Received::kClosed;
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return Received::kClosed;
        if (deadline.passed()) return Received::kLate;
        wait_for(socket, POLLIN, deadline);
    }
}

}  // namespace gcmoe::group
