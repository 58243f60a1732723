#include "trace/trace.hpp"

#include <set>
#include <tuple>

namespace gcmoe::trace {

const char* kind_name(Kind kind) {
    switch (kind) {
        case Kind::kWait:
            return "wait";
        case Kind::kBegin:
            return "begin";
        case Kind::kCount:
            return "count";
        case Kind::kRoute:
            return "route";
        case Kind::kReceive:
            return "receive";
        case Kind::kFill:
            return "fill";
        case Kind::kFirstGemm:
            return "first GEMM";
        case Kind::kRequantise:
            return "requantise";
        case Kind::kSecondGemm:
            return "second GEMM";
        case Kind::kSharedFirst:
            return "shared first GEMM";
        case Kind::kSharedSecond:
            return "shared second GEMM";
        case Kind::kCombine:
            return "combine";
    }
    return "unknown kind";
}

const char* unit_roles_name(UnitRoles roles) {
    switch (roles) {
        case UnitRoles::kRole1:
            return "role 1";
        case UnitRoles::kRoles23:
            return "roles 2, 3";
        case UnitRoles::kRole2:
            return "role 2";
        case UnitRoles::kRole3:
            return "role 3";
        case UnitRoles::kRole4:
            return "role 4";
    }
    return "unknown roles";
}

std::uint64_t Trace::num_units() const {
    std::set<std::tuple<int, UnitRoles, int>> units;
    for (const Track& track : tracks) units.insert({track.rank, track.roles, track.unit});
    return units.size();
}

std::uint64_t Trace::num_events() const {
    std::uint64_t sum = 0;
    for (const Track& track : tracks) sum += track.events.size();
    return sum;
}

std::uint64_t Trace::num_dropped() const {
    std::uint64_t sum = 0;
    for (const Track& track : tracks) sum += track.num_dropped;
    return sum;
}

}  // namespace gcmoe::trace
