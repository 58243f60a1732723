#include "group/meeting_attendee.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

namespace gcmoe::group {
namespace {

// The chair's clock decides; this much later its word must have come, also on a busy machine.
constexpr double kGraceSeconds = 0.75;
constexpr std::chrono::milliseconds kRetry{5};

// Of a limit in which 0 means for ever.
Deadline later(double limit_s) { return Deadline(limit_s <= 0 ? 0 : limit_s + kGraceSeconds); }

bool is_of_another_session(const Bytes& bytes, const Token& token) {
    PacketHeader header;
    return decode_header(bytes, &header) && header.token != token;
}

}  // namespace

MeetingAttendee::MeetingAttendee(const Identity& self, std::string folder, bool may_follow)
    : self_(self),
      folder_(std::move(folder)),
      may_follow_(may_follow),
      has_handle_of_(static_cast<std::size_t>(self.num_ranks)) {}

Status MeetingAttendee::stalled(const std::string& what) const {
    return {Code::kStalled, fmt::format("{}: rank 0 of {} {}", subject_, self_.num_ranks, what)};
}

Status MeetingAttendee::refuse(const std::string& what) const {
    return {Code::kBadInput, fmt::format("{}: rank 0 of {} {}", subject_, self_.num_ranks, what)};
}

bool MeetingAttendee::is_new_peer(int rank) {
    if (rank < 0 || rank >= self_.num_ranks || rank == self_.rank) return false;
    const auto at = static_cast<std::size_t>(rank);
    if (has_handle_of_[at]) return false;
    has_handle_of_[at] = true;
    return true;
}

// Nobody has let this rank in: who holds the folder instead, if anybody does?
Status MeetingAttendee::not_come(double wait_s) const {
    std::string what = fmt::format("has not come within {:g} s", wait_s);
    Token token;
    int pid = 0;
    if (connect_to(socket_path(folder_)).is_open() && read_session(folder_, &token, &pid)) {
        what += fmt::format(
            ": session folder '{}' belongs to process {}, which has let nobody in (this is process "
            "{})",
            folder_, pid, ::getpid());
    }
    return stalled(what);
}

// Until a chair says welcome: the one that was there before may have gone with its process.
Status MeetingAttendee::enter(const Hello& own, int own_handle, double wait_s, double* left_s) {
    const Deadline deadline = later(wait_s);
    for (;;) {
        int pid = 0;
        if (may_follow_) read_session(folder_, &self_.token, &pid);
        const Bytes hello = encode(self_, own);
        if (hello.size() > kMostPacketBytes) {
            return {Code::kBadInput,
                    fmt::format("{}: the configuration of rank {} makes a packet of {} bytes, at "
                                "most {} are possible",
                                subject_, self_.rank, hello.size(), kMostPacketBytes)};
        }
        socket_ = connect_to(socket_path(folder_));
        if (socket_.is_open() && send_packet(socket_.get(), hello, own_handle, deadline)) {
            Bytes bytes;
            UniqueFd none;
            const Received received = receive_packet(socket_.get(), deadline, &bytes, &none);
            if (received == Received::kPacket) {
                if (is_from(bytes, chair()) && decode_welcome(bytes, left_s)) return {};
                Status refusal;  // also from a chair of another session or version
                if (decode_status(bytes, PacketKind::kVerdict, &refusal) && !refusal.ok() &&
                    !(may_follow_ && is_of_another_session(bytes, self_.token))) {
                    return refusal;
                }
            }
        }
        if (deadline.passed()) return not_come(wait_s);
        std::this_thread::sleep_for(kRetry);
    }
}

Status MeetingAttendee::gather(const Hello& own, int own_handle, double wait_s,
                               const TakeHandle& take, Agreed* out) {
    subject_ = own.subject;
    double left_s = 0;
    GCMOE_RETURN_IF_ERROR(enter(own, own_handle, wait_s, &left_s));
    Deadline deadline(left_s + kGraceSeconds);
    for (bool is_handing_out = false;;) {
        Bytes bytes;
        SharedHandle handle;
        const Received received = receive_packet(socket_.get(), deadline, &bytes, &handle.fd);
        if (received == Received::kClosed) return stalled("left while the ranks met");
        if (received == Received::kLate) return stalled("has fallen silent while the ranks met");
        PeerHandle peer;
        Status verdict;
        if (!is_from(bytes, chair())) return refuse("sent a packet of another session");
        if (decode(bytes, out)) return {};
        if (decode(bytes, &peer)) {
            if (!is_new_peer(peer.rank)) {
                return refuse(
                    fmt::format("sent memory of rank {} to rank {}: no other rank of the "
                                "meeting, or one that it has sent before",
                                peer.rank, self_.rank));
            }
            // The chair's limit for handing out begins when all have come.
            if (!is_handing_out) deadline = later(wait_s);
            is_handing_out = true;
            handle.kind = peer.kind;
            handle.bytes = peer.bytes;
            take(peer.rank, handle);
        } else if (decode_status(bytes, PacketKind::kVerdict, &verdict) && !verdict.ok()) {
            return verdict;
        } else {
            return refuse("sent a packet that belongs to no meeting");
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
    if (received == Received::kPacket && is_from(bytes, chair()) &&
        decode_status(bytes, PacketKind::kVerdict, &verdict)) {
        return verdict;
    }
    return stalled(received == Received::kLate ? "has fallen silent while the ranks met"
                                               : "left while the ranks met");
}

}  // namespace gcmoe::group
