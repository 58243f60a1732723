// What a trace says in a few numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/trace.hpp"

namespace gcmoe::trace {

// One role on all ranks. Shares are of the role's unit time: for each track with anything of the
// role, from the role's first event on that rank to its last.
struct RoleShare {
    int role = 0;  // 1..4
    int num_units = 0;
    int num_tracks = 0;  // more than units where warps record
    std::uint64_t num_events = 0;
    double busy = 0;  // tasks
    double waiting = 0;
    double unit_us = 0;  // sum over tracks
};

struct LongWait {
    int rank = 0;
    int unit = 0;
    Event event;
};

struct Summary {
    std::vector<RoleShare> roles;  // those with events, ascending
    // Share of the time from a rank's first fill to its last during which role 2 worked on a task;
    // mean over the ranks with fills, by time.
    double overlap = 0;
    std::vector<LongWait> longest;  // first the longest
};

// num_longest: how many waits to list. Of one launch: events of several are one long launch here.
[[nodiscard]] Summary summarise(const Trace& trace, std::size_t num_longest);

}  // namespace gcmoe::trace
