#include "group/host_session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/status_of.hpp"
#include "layout/peer_table.hpp"

namespace gcmoe {
namespace group {
namespace {

constexpr double kMostWaitSeconds = 1e9;

Status check_options(const HostOptions& options) {
    if (options.num_ranks < 1 || options.num_ranks > layout::kMaxRanks) {
        return {Code::kBadConfig,
                fmt::format("num_ranks = {} must be in 1..{} (slots of the peer descriptor)",
                            options.num_ranks, layout::kMaxRanks)};
    }
    if (options.rank < 0 || options.rank >= options.num_ranks) {
        return {Code::kBadConfig,
                fmt::format("rank = {} must be in 0..{} (num_ranks = {})", options.rank,
                            options.num_ranks - 1, options.num_ranks)};
    }
    if (!(options.wait_s >= 0 && options.wait_s <= kMostWaitSeconds)) {
        return {
            Code::kBadConfig,
            fmt::format("wait_s = {} must be in 0..1e9 seconds (0 = for ever)", options.wait_s)};
    }
    if (options.session.empty()) return {Code::kBadConfig, "session: a folder must be named"};
    return {};
}

}  // namespace

Status HostSession::open(const HostOptions& options, std::unique_ptr<HostSession>* out) {
    GCMOE_RETURN_IF_ERROR(check_options(options));
    auto session = std::make_unique<HostSession>(options);
    const std::string folder = folder_name(options.session);
    session->options_.session = folder;
    GCMOE_RETURN_IF_ERROR(draw_random(&session->incarnation_, sizeof(session->incarnation_)));
    if (options.rank == 0) {
        GCMOE_RETURN_IF_ERROR(
            OwnedFolder::open(folder, options.replaces_lost, options.wait_s, &session->folder_));
        session->token_ = session->folder_.token();
    } else {
        const Status status = find_session(folder, Deadline(options.wait_s), &session->token_);
        if (status.code() == Code::kStalled) {
            return {Code::kStalled,
                    fmt::format("session '{}': rank 0 of {} has not come within "
                                "{:g} s",
                                options.session, options.num_ranks, options.wait_s)};
        }
        GCMOE_RETURN_IF_ERROR(status);
    }
    *out = std::move(session);
    return {};
}

Identity HostSession::identity() const { return {options_.rank, options_.num_ranks, token_}; }

// Want of memory in the meeting itself: rank 0 says so, another rank leaves, which rank 0 sees.
Status HostSession::gather(Hello hello, SharedHandle handle, const TakeHandle& take,
                           Agreed* agreed) {
    bool has_thrown = true;
    const Status status = status_of([&]() -> Status {
        const std::string subject = hello.subject;
        const Status met = gather_all(std::move(hello), std::move(handle), take, agreed);
        if (met.ok()) members_[subject] = agreed->members;
        has_met_ = has_met_ || met.ok();
        has_thrown = false;
        return met;
    });
    return has_thrown && chair_ != nullptr ? chair_->call_off(named(status)) : status;
}

Status HostSession::gather_all(Hello hello, SharedHandle handle, const TakeHandle& take,
                               Agreed* agreed) {
    if (options_.rank != 0) {
        attendee_ = std::make_unique<MeetingAttendee>(identity(), options_.session, !has_met_);
        const Status status =
            attendee_->gather(hello, handle.fd.get(), options_.wait_s, take, agreed);
        token_ = attendee_->token();
        return status;
    }
    chair_ = std::make_unique<MeetingChair>(
        identity(), folder_.listener(), hello.is_reset ? std::vector<std::uint64_t>() : roster_);
    GCMOE_RETURN_IF_ERROR(chair_->gather(std::move(hello), std::move(handle), options_.wait_s));
    chair_->hand_out(options_.wait_s, agreed);
    for (int rank = 1; rank < options_.num_ranks; ++rank) {
        const SharedHandle peer = chair_->take_handle(rank);
        if (!peer.kind.empty()) take(rank, peer);
    }
    return {};
}

Hello HostSession::hello_of(Offer* offer) const {
    Hello hello;
    hello.pid = ::getpid();
    hello.incarnation = incarnation_;
    hello.is_reset = offer->is_reset;
    hello.move = offer->move;
    hello.generation = offer->generation;
    hello.session = offer->session;
    const auto met = members_.find(offer->subject);
    if (met != members_.end()) hello.members = met->second;
    hello.subject = offer->subject;
    hello.configuration = std::move(offer->configuration);
    hello.handle_kind = offer->handle.kind;
    hello.handle_bytes = offer->handle.bytes;
    hello.failure = std::move(offer->failure);
    return hello;
}

Status HostSession::meet(Offer offer, const TakeHandle& take, const Prepare& prepare) {
    // Whatever the way out: with the connections closed, nobody waits for this rank.
    const std::unique_ptr<HostSession, void (*)(HostSession*)> leaves(
        this, [](HostSession* self) { self->leave(); });
    Status own;
    const auto take_or_note = [&](int rank, const SharedHandle& handle) {
        if (own.ok()) own = status_of([&] { return take(rank, handle), Status(); });
    };
    Agreed agreed;
    Hello hello = hello_of(&offer);
    GCMOE_RETURN_IF_ERROR(gather(std::move(hello), std::move(offer.handle), take_or_note, &agreed));
    if (own.ok()) {
        const Agreement agreement{agreed.is_restart, agreed.generation, agreed.session};
        own = status_of([&] { return prepare(agreement); });
    }
    const Status started = start(own);
    if (started.ok()) roster_ = std::move(agreed.members);
    return started;
}

Status HostSession::named(const Status& own) const {
    if (own.ok()) return own;
    return {own.code(), fmt::format("rank {}: {}", options_.rank, own.message())};
}

Status HostSession::start(const Status& own) {
    return chair_ != nullptr ? chair_->start(named(own), options_.wait_s)
                             : attendee_->start(named(own), options_.wait_s);
}

void HostSession::leave() {
    chair_.reset();
    attendee_.reset();
}

}  // namespace group
}  // namespace gcmoe
