// A unit's work as trace events. Off (no log): one comparison an event.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"
#include "trace/event.hpp"

namespace gcmoe::cpu {

// Now, if the unit keeps a log.
template <protocol::SignalMemory M>
[[nodiscard]] std::uint64_t begin_work(const protocol::Launch& launch) {
    return launch.log == nullptr ? 0 : M::clock_ns();
}

// What work was about.
struct WorkSite {
    trace::Kind kind;
    std::uint32_t block = trace::kNoBlock;
    std::uint32_t expert = trace::kNoIndex;
    std::uint32_t task = trace::kNoIndex;
};

template <protocol::SignalMemory M>
void end_work(const protocol::Launch& launch, std::uint64_t begin_ns, const WorkSite& site) {
    if (launch.log == nullptr) return;
    trace::Event event;
    event.begin_ns = begin_ns;
    event.end_ns = M::clock_ns();
    event.block = site.block;
    event.generation = launch.generation;
    event.expert = static_cast<std::uint16_t>(site.expert);
    event.task = static_cast<std::uint16_t>(site.task);
    event.kind = site.kind;
    event.role = static_cast<std::uint8_t>(launch.role);
    trace::record(launch.log, event);
}

}  // namespace gcmoe::cpu
