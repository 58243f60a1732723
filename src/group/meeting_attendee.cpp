#include "group/meeting_attendee.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

namespace gcmoe::group {
namespace {

// The chair's clock decides; this much later its word must have come, also on a busy machine.
constexpr double kGraceSeconds = 0.75;
constexpr std::chrono::milliseconds kRetry{5};

Deadline later(double seconds) { return Deadline(seconds <= 0 ? 0 : seconds + kGraceSeconds); }

}  // namespace

MeetingAttendee::MeetingAttendee(const Identity& self, std::string chair_path)
    : self_(self), chair_path_(std::move(chair_path)) {}

Status MeetingAttendee::stalled(const std::string& what) const {
    return {Code::kStalled, fmt::format("{}: rank 0 of {} {}", subject_, self_.num_ranks, what)};
}

// Until a chair says welcome: the one that was there before may have gone with its process.
Status MeetingAttendee::enter(const Hello& own, int own_handle, double wait_s, double* left_s) {
    const Deadline deadline = later(wait_s);
    const Bytes hello = encode(self_, own);
    for (;;) {
        socket_ = connect_to(chair_path_);
        if (socket_.is_open() && send_packet(socket_.get(), hello, own_handle, deadline)) {
            Bytes bytes;
            UniqueFd none;
            const Received received = receive_packet(socket_.get(), deadline, &bytes, &none);
            if (received == Received::kPacket) {
                if (decode_welcome(bytes, left_s)) return {};
                Status refusal;
                if (decode_status(bytes, &refusal) && !refusal.ok()) return refusal;
            }
        }
        if (deadline.passed()) return stalled(fmt::format("has not come within {:g} s", wait_s));
        std::this_thread::sleep_for(kRetry);
    }
}

Status MeetingAttendee::gather(const Hello& own, int own_handle, double wait_s,
                               const TakeHandle& take, Agreed* out) {
    subject_ = own.subject;
    double left_s = 0;
    GCMOE_RETURN_IF_ERROR(enter(own, own_handle, wait_s, &left_s));
    const Deadline deadline = later(left_s);
    for (;;) {
        Bytes bytes;
        SharedHandle handle;
        const Received received = receive_packet(socket_.get(), deadline, &bytes, &handle.fd);
        if (received == Received::kClosed) return stalled("left while the ranks met");
        if (received == Received::kLate) return stalled("has fallen silent while the ranks met");
        PeerHandle peer;
        Status verdict;
        if (decode(bytes, out)) return {};
        if (decode(bytes, &peer)) {
            handle.kind = peer.kind;
            handle.bytes = peer.bytes;
            take(peer.rank, handle);
        } else if (decode_status(bytes, &verdict) && !verdict.ok()) {
            return verdict;
        }
    }
}

Status MeetingAttendee::start(const Status& own, double wait_s) {
    const Deadline deadline = later(wait_s);
    if (!send_packet(socket_.get(), encode_status(self_, PacketKind::kReady, own), -1, deadline)) {
        return stalled("left while the ranks met");
    }
    Bytes bytes;
    UniqueFd none;
    Status verdict;
    const Received received = receive_packet(socket_.get(), deadline, &bytes, &none);
    if (received == Received::kPacket && decode_status(bytes, &verdict)) return verdict;
    return stalled(received == Received::kLate ? "has fallen silent while the ranks met"
                                               : "left while the ranks met");
}

}  // namespace gcmoe::group
