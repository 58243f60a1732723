// Events of the trace, from the device: a log for each CTA, in role 1 for each warp, with one
// thread that writes. Kernels of plain launches hold none of it (kKeepsLogs).
#pragma once

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/ptx/special.cuh"
#include "protocol/wait.hpp"
#include "trace/event.hpp"

namespace gcmoe::cuda::device {

// What an event is about.
struct LogSite {
    trace::Kind kind;
    std::uint32_t block = trace::kNoBlock;
    std::uint32_t expert = trace::kNoIndex;
    std::uint32_t task = trace::kNoIndex;
    std::uint32_t peer = trace::kNoPeer;
    Signal signal = Signal::kNone;
};

// From when to when.
struct LogSpan {
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
};

// Now, if the units keep logs.
template <class Gpu>
__device__ __forceinline__ std::uint64_t log_clock(const Gpu& /*gpu*/) {
    if constexpr (kKeepsLogs<Gpu>) return ptx::global_timer_ns();
    return 0;
}

// `time_ns`, or the end of the log's last event if that is later.
__device__ __forceinline__ std::uint64_t after_last(const trace::UnitLog& log,
                                                    std::uint64_t time_ns) {
    if (log.num_events == 0) return time_ns;
    const std::uint64_t last_ns = log.events[log.num_events - 1].end_ns;
    return last_ns > time_ns ? last_ns : time_ns;
}

// The log's thread.
__device__ __forceinline__ void log_event(trace::UnitLog* log, const protocol::Launch& launch,
                                          const LogSite& site, const LogSpan& span) {
    trace::Event event;
    event.begin_ns = span.begin_ns;
    event.end_ns = span.end_ns;
    event.block = site.block;
    event.generation = launch.generation;
    event.expert = static_cast<std::uint16_t>(site.expert);
    event.task = static_cast<std::uint16_t>(site.task);
    event.kind = site.kind;
    event.role = static_cast<std::uint8_t>(launch.role);
    event.signal = static_cast<std::uint8_t>(site.signal);
    event.peer = static_cast<std::uint8_t>(site.peer);
    trace::record(log, event);
}

// The log's thread: what it did since `begin_ns` or, if that is later, the end of its last event.
__device__ __forceinline__ void log_step(trace::UnitLog* log, const protocol::Launch& launch,
                                         const LogSite& site, std::uint64_t begin_ns) {
    const std::uint64_t end_ns = ptx::global_timer_ns();
    log_event(log, launch, site, {after_last(*log, begin_ns), end_ns});
}

}  // namespace gcmoe::cuda::device
