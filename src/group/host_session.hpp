// A rank's part of a session of processes on one host. Ranks meet when a workspace is made and when
// it is reset: each brings a configuration and a handle of its memory, all leave with everyone's.
// The handle is anything that a descriptor stands for; nothing here knows what it maps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gcmoe/group.hpp"
#include "group/meeting_attendee.hpp"
#include "group/meeting_chair.hpp"
#include "group/session_folder.hpp"

namespace gcmoe::group {

// What a rank brings to a meeting.
struct Offer {
    std::string subject;          // "workspace 'default'": what the ranks meet for
    Configuration configuration;  // must be equal on all
    bool is_reset = false;        // of something that this rank has met for before
    bool move = false;            // a reset into new memory
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
    SharedHandle handle;  // empty: nothing
    Status failure;       // this rank cannot take part: all hear why
};

// What all start from, once they have met.
struct Agreement {
    bool is_restart = false;  // some rank has been there before: generation and session are new
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
};

// What a rank does when all have agreed and before all start; Ok, or why it cannot go on.
using Prepare = std::function<Status(const Agreement& agreement)>;

class HostSession {
  public:
    // Errors: those of the folder; kStalled (rank 0 has not come).
    static Status open(const HostOptions& options, std::unique_ptr<HostSession>* out);
    explicit HostSession(const HostOptions& options) : options_(options) {}

    [[nodiscard]] const HostOptions& options() const { return options_; }

    // Waits for all ranks; `take` gets the handle of each other rank. Then every rank prepares, and
    // rank 0 lets all go on or none; a rank that its word does not reach in time stalls alone, and
    // the others find that out by the deadline of their next launch. What `take` or `prepare`
    // throws is a failure of this rank, and comes back as a Status. Errors, the same on every rank:
    // the failure of a rank, kStalled naming who has not come or has gone, kBadConfig naming the
    // field that differs.
    Status meet(Offer offer, const TakeHandle& take, const Prepare& prepare);

  private:
    [[nodiscard]] Identity identity() const;
    [[nodiscard]] Hello hello_of(Offer* offer) const;
    Status gather(Hello hello, SharedHandle handle, const TakeHandle& take, Agreed* agreed);
    Status gather_all(Hello hello, SharedHandle handle, const TakeHandle& take, Agreed* agreed);
    Status start(const Status& own);
    [[nodiscard]] Status named(const Status& own) const;
    void leave();

    HostOptions options_;
    Token token_;
    std::uint64_t incarnation_ = 0;
    bool has_met_ = false;  // others, who are then known there by this session's token
    OwnedFolder folder_;    // rank 0
    // Incarnations of the last meeting that started, by rank; empty: none has. Only they are let
    // into the next one, unless it is a reset, to which replacements of lost ranks come.
    std::vector<std::uint64_t> roster_;
    // The same of each subject's last meeting.
    std::map<std::string, std::vector<std::uint64_t>> members_;
    std::unique_ptr<MeetingChair> chair_;        // rank 0, in a meeting
    std::unique_ptr<MeetingAttendee> attendee_;  // others
};

}  // namespace gcmoe::group
