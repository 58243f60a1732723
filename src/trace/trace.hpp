// What all units of all ranks recorded, for the writers and the summary.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/event.hpp"

namespace gcmoe::trace {

// One unit's events, in the order in which it made them.
struct Track {
    int rank = 0;
    int unit = 0;
    bool is_dispatch = false;  // a unit of the communication partition: role 1 (4); else roles 2, 3
    std::vector<Event> events;
    std::uint64_t num_dropped = 0;
};

struct Trace {
    std::vector<Track> tracks;

    [[nodiscard]] std::uint64_t num_events() const;
    [[nodiscard]] std::uint64_t num_dropped() const;
};

}  // namespace gcmoe::trace
