// The other ranks' side of a meeting (meeting_chair.hpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "group/meeting_packets.hpp"

namespace gcmoe::group {

// Gets another rank's handle.
using TakeHandle = std::function<void(int rank, const SharedHandle& handle)>;

class MeetingAttendee {
  public:
    // may_follow: this rank has met nobody yet, so that `self` may belong to a session that is
    // about to end; it then goes to the session that comes next in the folder.
    MeetingAttendee(const Identity& self, std::string folder, bool may_follow);
    // Comes to the chair and waits for what is agreed on. `take` gets ranks of the meeting, each at
    // most once, never this one. Errors: the chair's verdict, kStalled if rank 0 does not come,
    // goes, or stays silent, kBadInput if it says what no chair of this meeting says.
    Status gather(const Hello& own, int own_handle, double wait_s, const TakeHandle& take,
                  Agreed* out);
    // Tells the chair that this rank is ready, or why not; returns its verdict.
    Status start(const Status& own, double wait_s);
    // Of the session whose chair this rank has come to. Callers: after gather.
    [[nodiscard]] const Token& token() const { return self_.token; }

  private:
    Status enter(const Hello& own, int own_handle, double wait_s, double* left_s);
    // What the chair says about a peer, not believed: is it a rank of this meeting, and new?
    bool is_new_peer(int rank);
    [[nodiscard]] Status not_come(double wait_s) const;
    [[nodiscard]] Identity chair() const { return {0, self_.num_ranks, self_.token}; }
    [[nodiscard]] Status stalled(const std::string& what) const;
    [[nodiscard]] Status refuse(const std::string& what) const;

    Identity self_;
    std::string folder_;
    bool may_follow_;
    std::string subject_;
    UniqueFd socket_;
    std::vector<bool> has_handle_of_;  // (num_ranks)
};

}  // namespace gcmoe::group
