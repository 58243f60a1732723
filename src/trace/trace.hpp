// What all units of all ranks recorded, for the writers and the summary.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/event.hpp"

namespace gcmoe::trace {

// Which roles a unit runs: a CPU's worker two in turn, a GPU's CTA one.
enum class UnitRoles : std::uint8_t { kRole1, kRoles23, kRole2, kRole3, kRole4 };

[[nodiscard]] const char* unit_roles_name(UnitRoles roles);

// One unit's events, in the order in which it made them. Units that work on several things at once
// have a track for each warp.
struct Track {
    int rank = 0;
    UnitRoles roles = UnitRoles::kRole1;
    int unit = 0;
    int warp = -1;  // -1 = the whole unit
    std::vector<Event> events;
    std::uint64_t num_dropped = 0;
};

struct Trace {
    std::vector<Track> tracks;

    [[nodiscard]] std::uint64_t num_units() const;
    [[nodiscard]] std::uint64_t num_events() const;
    [[nodiscard]] std::uint64_t num_dropped() const;
};

}  // namespace gcmoe::trace
