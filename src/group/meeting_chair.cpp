#include "group/meeting_chair.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "protocol/words.hpp"

namespace gcmoe::group {
namespace {

// Telling somebody that he is not wanted must not hold up the others.
constexpr double kTellSeconds = 0.5;
// How long others of an outsider's kind may still come, so that they hear the same.
constexpr double kOutsiderSeconds = 1.0;

// Connections that have not said who they are yet: more than ranks can have by themselves.
constexpr std::size_t kMostPending = 128;

bool has_packet(int socket) {
    pollfd one{socket, POLLIN, 0};
    return ::poll(&one, 1, 0) > 0;
}

// Start values of a new workspace mean nothing to one that goes on.
void drop_start_fields(Configuration* fields) {
    fields->erase(
        std::remove_if(fields->begin(), fields->end(),
                       [](const auto& field) { return field.first.rfind("start.", 0) == 0; }),
        fields->end());
}

}  // namespace

MeetingChair::MeetingChair(const Identity& self, int listener, std::vector<std::uint64_t> members)
    : self_(self),
      listener_(listener),
      admitted_(std::move(members)),
      seats_(static_cast<std::size_t>(self.num_ranks)) {}

Status MeetingChair::gather(Hello own, SharedHandle own_handle, double wait_s) {
    seats_[0].hello = std::move(own);
    seats_[0].handle = std::move(own_handle.fd);
    seats_[0].is_taken = true;
    note_failure(0, seats_[0].hello.failure);
    const Deadline deadline(wait_s);
    Deadline outsiders_end(0);
    while (is_waiting() && !deadline.passed()) {
        const bool had_outsider = !outsiders_.empty();
        wait_for_events(deadline);
        if (Status status = accept_all(); !status.ok()) return tell_all(status);
        read_pending(deadline);
        tell_failure();
        find_left();
        if (!had_outsider && !outsiders_.empty()) outsiders_end = Deadline(kOutsiderSeconds);
        if (outsiders_end.passed()) break;
    }
    return tell_all(judge(wait_s));
}

void MeetingChair::note_failure(int rank, const Status& failure) {
    if (failure.ok() || !failure_.ok()) return;
    failure_ = {failure.code(),
                fmt::format("{}: rank {}: {}", seats_[0].hello.subject, rank, failure.message())};
}

// Who has come need not wait for who has not: rank 0 stays to tell those, too.
void MeetingChair::tell_failure() {
    if (failure_.ok()) return;
    const Bytes packet = encode_status(self_, PacketKind::kVerdict, failure_);
    for (Seat& one : seats_) {
        if (!one.socket.is_open() || one.is_told) continue;
        send_packet(one.socket.get(), packet, -1, Deadline(kTellSeconds));
        one.is_told = true;
    }
}

bool MeetingChair::is_waiting() const {
    return std::any_of(seats_.begin(), seats_.end(),
                       [](const Seat& one) { return one.is_empty(); });
}

void MeetingChair::wait_for_events(const Deadline& deadline) const {
    std::vector<pollfd> events{{listener_, POLLIN, 0}};
    for (const UniqueFd& socket : pending_) events.push_back({socket.get(), POLLIN, 0});
    for (const Seat& one : seats_) {
        if (one.socket.is_open() && !one.has_left) {
            events.push_back({one.socket.get(), POLLRDHUP, 0});
        }
    }
    constexpr int kLookAroundMs = 100;
    ::poll(events.data(), events.size(), std::min(deadline.poll_ms(), kLookAroundMs));
}

Status MeetingChair::accept_all() {
    while (has_packet(listener_)) {
        UniqueFd socket;
        Status status = accept_from(listener_, &socket);
        if (!status.ok() && pending_.empty()) {
            return {status.code(),
                    fmt::format("{}: {}", seats_[0].hello.subject, status.message())};
        }
        // Who says nothing gives way; a rank that was hung up on comes again.
        if (!status.ok() || pending_.size() >= kMostPending) pending_.erase(pending_.begin());
        if (socket.is_open()) pending_.push_back(std::move(socket));
    }
    return {};
}

void MeetingChair::read_pending(const Deadline& deadline) {
    std::vector<UniqueFd> silent;
    for (UniqueFd& socket : pending_) {
        if (has_packet(socket.get())) {
            seat(std::move(socket), deadline);
        } else {
            silent.push_back(std::move(socket));
        }
    }
    pending_ = std::move(silent);
}

void MeetingChair::note_outsider(UniqueFd socket, const std::string& difference) {
    if (outsider_difference_.empty()) outsider_difference_ = difference;
    outsiders_.push_back(std::move(socket));
}

// `hello` is empty if it could not be read: then it is no member's.
bool MeetingChair::admits(const PacketHeader& header, const Hello& hello) const {
    if (admitted_.empty()) return true;
    if (header.rank < 1 || header.rank >= self_.num_ranks) return false;
    return hello.incarnation == admitted_[static_cast<std::size_t>(header.rank)];
}

void MeetingChair::seat(UniqueFd socket, const Deadline& deadline) {
    Bytes bytes;
    UniqueFd handle;
    PacketHeader header;
    if (receive_packet(socket.get(), deadline, &bytes, &handle) != Received::kPacket) return;
    if (has_hung_up(socket.get())) return;  // a try that was given up before this meeting
    if (!decode_header(bytes, &header)) return;
    const auto refuse = [&](const std::string& why) {
        const Status status(Code::kBadInput,
                            fmt::format("rank {} is refused: {}", header.rank, why));
        send_packet(socket.get(), encode_status(self_, PacketKind::kVerdict, status), -1,
                    Deadline(kTellSeconds));
    };
    Hello hello;
    const bool is_hello = decode(bytes, &hello);
    if (header.token != self_.token) {
        return refuse(fmt::format(
            "{} belongs to another session of this folder than rank 0, which "
            "is process {}",
            is_hello ? fmt::format("process {}", hello.pid) : "it", seats_[0].hello.pid));
    }
    // It belongs to the session that comes next here: hung up on, it tries again until that begins.
    if (!admits(header, is_hello ? hello : Hello())) return;
    if (header.version != kWireVersion) {
        return note_outsider(std::move(socket),
                             fmt::format("wire version = {} on rank 0 but wire version = {} on "
                                         "rank {}",
                                         kWireVersion, header.version, header.rank));
    }
    if (header.num_ranks != self_.num_ranks) {
        return note_outsider(std::move(socket),
                             fmt::format("num_ranks = {} on rank 0 but num_ranks = {} on rank {}",
                                         self_.num_ranks, header.num_ranks, header.rank));
    }
    if (header.rank < 1 || header.rank >= self_.num_ranks || !is_hello) return;
    Seat& own = seats_[static_cast<std::size_t>(header.rank)];
    if (own.is_taken && !own.has_left) {
        if (!takes_place_of(hello, own.hello)) {
            return refuse(fmt::format("process {} has its place (this is process {})",
                                      own.hello.pid, hello.pid));
        }
        std::swap(socket, own.socket);
        refuse(fmt::format("process {} has taken its place", hello.pid));
        std::swap(socket, own.socket);
    }
    send_packet(socket.get(), encode_welcome(self_, std::max(0.0, deadline.left_s())), -1,
                Deadline(kTellSeconds));
    note_failure(header.rank, hello.failure);
    own = Seat{std::move(socket), std::move(hello), std::move(handle), true, false, false};
}

void MeetingChair::find_left() {
    for (Seat& one : seats_) {
        if (one.socket.is_open() && has_hung_up(one.socket.get())) one.has_left = true;
    }
}

Status MeetingChair::judge(double wait_s) const {
    if (!outsider_difference_.empty()) {
        return {Code::kBadConfig,
                fmt::format("{}: ranks differ: {}", seats_[0].hello.subject, outsider_difference_)};
    }
    GCMOE_RETURN_IF_ERROR(failure_);
    GCMOE_RETURN_IF_ERROR(judge_presence(wait_s));
    GCMOE_RETURN_IF_ERROR(judge_configurations());
    return judge_memory();
}

Status MeetingChair::judge_presence(double wait_s) const {
    std::vector<int> left;
    std::vector<int> missing;
    for (int rank = 0; rank < self_.num_ranks; ++rank) {
        const Seat& one = seats_[static_cast<std::size_t>(rank)];
        if (one.has_left) left.push_back(rank);
        if (one.is_empty()) missing.push_back(rank);
    }
    const std::string& subject = seats_[0].hello.subject;
    if (!left.empty()) {
        return {Code::kStalled, fmt::format("{}: {} of {} left while the ranks met", subject,
                                            rank_list(left), self_.num_ranks)};
    }
    if (missing.empty()) return {};
    return {Code::kStalled,
            fmt::format("{}: {} of {} {} not come within {:g} s", subject, rank_list(missing),
                        self_.num_ranks, missing.size() == 1 ? "has" : "have", wait_s)};
}

bool MeetingChair::is_restart() const {
    return std::any_of(seats_.begin(), seats_.end(),
                       [](const Seat& one) { return one.hello.is_reset; });
}

Status MeetingChair::judge_configurations() const {
    std::vector<Configuration> all;
    std::vector<const Configuration*> pointers;
    for (const Seat& one : seats_) {
        Configuration fields{{"subject", one.hello.subject}};
        fields.insert(fields.end(), one.hello.configuration.begin(), one.hello.configuration.end());
        if (is_restart()) drop_start_fields(&fields);
        all.push_back(std::move(fields));
    }
    for (const Configuration& one : all) pointers.push_back(&one);
    const std::string text = difference(pointers);
    if (text.empty()) return {};
    return {Code::kBadConfig, fmt::format("{}: ranks differ: {}", seats_[0].hello.subject, text)};
}

// A rank that some other remembers as another process, or not at all; -1 = none.
int MeetingChair::find_newcomer() const {
    const std::vector<std::uint64_t> now = members();
    for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
        if (!seats_[rank].hello.is_reset) return static_cast<int>(rank);
        for (const Seat& other : seats_) {
            const std::vector<std::uint64_t>& known = other.hello.members;
            if (!other.hello.is_reset) continue;
            if (rank >= known.size() || known[rank] != now[rank]) return static_cast<int>(rank);
        }
    }
    return -1;
}

// Memory of the session before may be used again only if nobody is left who could write to it.
Status MeetingChair::judge_memory() const {
    const auto keeps = [](const Seat& one) { return one.hello.is_reset && !one.hello.move; };
    const auto moves = [](const Seat& one) { return one.hello.is_reset && one.hello.move; };
    const auto keeper = std::find_if(seats_.begin(), seats_.end(), keeps);
    if (keeper == seats_.end()) return {};
    const std::string& subject = seats_[0].hello.subject;
    const auto mover = std::find_if(seats_.begin(), seats_.end(), moves);
    if (mover != seats_.end()) {
        return {Code::kBadConfig,
                fmt::format("{}: ranks differ: move = false on rank {} but move = true on rank {}",
                            subject, keeper - seats_.begin(), mover - seats_.begin())};
    }
    const int newcomer = find_newcomer();
    if (newcomer < 0) return {};
    return {Code::kBadInput,
            fmt::format("{}: a reset without move uses memory again, and rank {} is another "
                        "process than in the session before: the lost one may still write there; "
                        "reset with move on all ranks",
                        subject, newcomer)};
}

std::vector<std::uint64_t> MeetingChair::members() const {
    std::vector<std::uint64_t> all;
    for (const Seat& one : seats_) all.push_back(one.hello.incarnation);
    return all;
}

void MeetingChair::hand_out(double wait_s, Agreed* out) {
    const Deadline deadline(wait_s);
    out->is_restart = is_restart();
    out->members = members();
    out->generation = seats_[0].hello.generation;
    out->session = seats_[0].hello.session;
    if (out->is_restart) {
        bool is_first = true;
        for (const Seat& one : seats_) {
            const Hello& hello = one.hello;
            if (protocol::generation_distance(hello.session, out->session) > 0) {
                out->session = hello.session;
            }
            if (!hello.is_reset) continue;
            if (is_first || protocol::generation_distance(hello.generation, out->generation) > 0) {
                out->generation = hello.generation;
            }
            is_first = false;
        }
        ++out->session;
    }
    // One rank's handle to all, then the next: few descriptors are on their way at a time.
    for (int from = 0; from < self_.num_ranks; ++from) {
        const Seat& giver = seats_[static_cast<std::size_t>(from)];
        if (giver.hello.handle_kind.empty()) continue;
        const Bytes packet =
            encode(self_, PeerHandle{from, giver.hello.handle_kind, giver.hello.handle_bytes});
        for (int to = 1; to < self_.num_ranks; ++to) {
            const Seat& taker = seats_[static_cast<std::size_t>(to)];
            if (to == from) continue;
            send_packet(taker.socket.get(), packet, giver.handle.get(), deadline);
        }
    }
    const Bytes packet = encode(self_, *out);
    for (std::size_t to = 1; to < seats_.size(); ++to) {
        send_packet(seats_[to].socket.get(), packet, -1, deadline);
    }
}

SharedHandle MeetingChair::take_handle(int rank) {
    Seat& giver = seats_[static_cast<std::size_t>(rank)];
    return {giver.hello.handle_kind, giver.hello.handle_bytes, std::move(giver.handle)};
}

Status MeetingChair::ready_of(int rank, const Deadline& deadline) {
    Seat& one = seats_[static_cast<std::size_t>(rank)];
    Bytes bytes;
    UniqueFd none;
    Status status;
    const Received received = receive_packet(one.socket.get(), deadline, &bytes, &none);
    if (received == Received::kPacket && is_from(bytes, {rank, self_.num_ranks, self_.token}) &&
        decode_status(bytes, PacketKind::kReady, &status)) {
        return status;
    }
    const char* what =
        received == Received::kLate ? "did not get ready in time" : "left while the ranks met";
    return {Code::kStalled, fmt::format("{}: rank {} of {} {}", seats_[0].hello.subject, rank,
                                        self_.num_ranks, what)};
}

Status MeetingChair::start(const Status& own, double wait_s) {
    const Deadline deadline(wait_s);
    Status first = own;
    for (int rank = 1; rank < self_.num_ranks; ++rank) {
        Status status = ready_of(rank, deadline);
        if (first.ok()) first = std::move(status);
    }
    const Bytes packet = encode_status(self_, PacketKind::kVerdict, first);
    for (std::size_t to = 1; to < seats_.size(); ++to) {
        send_packet(seats_[to].socket.get(), packet, -1, Deadline(kTellSeconds));
    }
    return first;
}

Status MeetingChair::call_off(const Status& why) { return tell_all(why); }

// A refusal goes to everybody who came.
Status MeetingChair::tell_all(const Status& status) {
    if (status.ok()) return status;
    const Bytes packet = encode_status(self_, PacketKind::kVerdict, status);
    const Deadline deadline(kTellSeconds);
    for (const Seat& one : seats_) {
        if (one.socket.is_open()) send_packet(one.socket.get(), packet, -1, deadline);
    }
    for (const UniqueFd& socket : outsiders_) send_packet(socket.get(), packet, -1, deadline);
    return status;
}

}  // namespace gcmoe::group
