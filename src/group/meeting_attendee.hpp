// The other ranks' side of a meeting (meeting_chair.hpp).
#pragma once

#include <functional>
#include <string>

#include "group/meeting_packets.hpp"

namespace gcmoe::group {

// Gets another rank's handle.
using TakeHandle = std::function<void(int rank, const SharedHandle& handle)>;

class MeetingAttendee {
  public:
    MeetingAttendee(const Identity& self, std::string chair_path);
    // Comes to the chair and waits for what is agreed on. Errors: the chair's verdict, or kStalled
    // if rank 0 does not come, goes, or stays silent.
    Status gather(const Hello& own, int own_handle, double wait_s, const TakeHandle& take,
                  Agreed* out);
    // Tells the chair that this rank is ready, or why not; returns its verdict.
    Status start(const Status& own, double wait_s);

  private:
    Status enter(const Hello& own, int own_handle, double wait_s, double* left_s);
    [[nodiscard]] Status stalled(const std::string& what) const;

    Identity self_;
    std::string chair_path_;
    std::string subject_;
    UniqueFd socket_;
};

}  // namespace gcmoe::group
