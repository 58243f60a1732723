#include "trace/summary.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace gcmoe::trace {
namespace {

using Span = std::pair<std::uint64_t, std::uint64_t>;

// One role on one rank.
struct RoleOnRank {
    Span span{~std::uint64_t{0}, 0};
    std::set<std::pair<UnitRoles, int>> units;
    std::set<const Track*> tracks;
    std::uint64_t num_events = 0;
    std::uint64_t busy_ns = 0;
    std::uint64_t wait_ns = 0;

    void add(const Track& track, const Event& event) {
        span.first = std::min(span.first, event.begin_ns);
        span.second = std::max(span.second, event.end_ns);
        units.insert({track.roles, track.unit});
        tracks.insert(&track);
        ++num_events;
        (event.kind == Kind::kWait ? wait_ns : busy_ns) += event.end_ns - event.begin_ns;
    }
    [[nodiscard]] std::uint64_t track_ns() const {
        return (span.second - span.first) * tracks.size();
    }
};

double share(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

RoleShare add_ranks(int role, const std::map<std::pair<int, int>, RoleOnRank>& parts) {
    RoleShare sum;
    sum.role = role;
    std::uint64_t busy = 0;
    std::uint64_t waiting = 0;
    std::uint64_t whole = 0;
    for (const auto& [key, part] : parts) {
        if (key.first != role) continue;
        sum.num_units += static_cast<int>(part.units.size());
        sum.num_events += part.num_events;
        busy += part.busy_ns;
        waiting += part.wait_ns;
        whole += part.track_ns();
        sum.num_tracks += static_cast<int>(part.tracks.size());
    }
    sum.busy = share(busy, whole);
    sum.waiting = share(waiting, whole);
    sum.unit_us = static_cast<double>(whole) / 1000.0;
    return sum;
}

// Length of the part of `window` that some span covers. Sorts the spans.
std::uint64_t covered(const Span& window, std::vector<Span>* spans) {
    std::sort(spans->begin(), spans->end());
    std::uint64_t sum = 0;
    std::uint64_t at = window.first;
    for (const Span& span : *spans) {
        const std::uint64_t begin = std::max(at, span.first);
        const std::uint64_t end = std::min(window.second, span.second);
        if (begin >= end) continue;
        sum += end - begin;
        at = end;
    }
    return sum;
}

double overlap_of(const Trace& trace) {
    struct Rank {
        Span fills{~std::uint64_t{0}, 0};
        std::vector<Span> tasks;
    };
    std::map<int, Rank> ranks;
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) {
            Rank& rank = ranks[track.rank];
            if (event.kind == Kind::kFill) {
                rank.fills.first = std::min(rank.fills.first, event.begin_ns);
                rank.fills.second = std::max(rank.fills.second, event.end_ns);
            } else if (event.role == static_cast<std::uint8_t>(Role::kCompute) &&
                       event.kind != Kind::kWait) {
                rank.tasks.emplace_back(event.begin_ns, event.end_ns);
            }
        }
    }
    std::uint64_t part = 0;
    std::uint64_t whole = 0;
    for (auto& [number, rank] : ranks) {
        if (rank.fills.second <= rank.fills.first) continue;
        part += covered(rank.fills, &rank.tasks);
        whole += rank.fills.second - rank.fills.first;
    }
    return share(part, whole);
}

std::vector<LongWait> longest_waits(const Trace& trace, std::size_t num) {
    std::vector<LongWait> waits;
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) {
            if (event.kind == Kind::kWait) waits.push_back({track.rank, track.unit, event});
        }
    }
    const auto longer = [](const LongWait& a, const LongWait& b) {
        return a.event.end_ns - a.event.begin_ns > b.event.end_ns - b.event.begin_ns;
    };
    std::stable_sort(waits.begin(), waits.end(), longer);
    waits.resize(std::min(num, waits.size()));
    return waits;
}

}  // namespace

Summary summarise(const Trace& trace, std::size_t num_longest) {
    std::map<std::pair<int, int>, RoleOnRank> parts;  // (role, rank)
    std::set<int> roles;
    for (const Track& track : trace.tracks) {
        for (const Event& event : track.events) {
            parts[{event.role, track.rank}].add(track, event);
            roles.insert(event.role);
        }
    }
    Summary summary;
    for (const int role : roles) summary.roles.push_back(add_ranks(role, parts));
    summary.overlap = overlap_of(trace);
    summary.longest = longest_waits(trace, num_longest);
    return summary;
}

}  // namespace gcmoe::trace
