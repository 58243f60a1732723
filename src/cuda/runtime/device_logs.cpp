#include "cuda/runtime/device_logs.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/math.hpp"

namespace gcmoe::cuda::runtime {

using device::cuda_status;
using trace::Event;
using trace::UnitLog;
using trace::UnitRoles;

Status DeviceLogs::allocate(const UnitCounts& counts, std::size_t unit_events) {
    const std::size_t warp_events = ceil_div(unit_events, std::size_t{device::kDispatchLogs});
    ranges_ = {
        {UnitRoles::kRole1, counts.dispatch * device::kDispatchLogs, device::kDispatchLogs,
         warp_events},
        {UnitRoles::kRole2, counts.compute, 1, unit_events},
        {UnitRoles::kRole3, counts.combine, 1, unit_events},
        {UnitRoles::kRole4, counts.dispatch, 1, unit_events},
    };
    std::size_t num_events = 0;
    for (const Range& range : ranges_) num_events += range.num_logs * range.capacity;
    GCMOE_RETURN_IF_ERROR(events_.allocate(num_events * sizeof(Event), "the events of a trace"));
    std::vector<UnitLog> headers;
    auto* events = events_.as<Event>();
    for (const Range& range : ranges_) {
        for (std::size_t i = 0; i < range.num_logs; ++i) {
            headers.push_back({events, static_cast<std::uint32_t>(range.capacity)});
            events += range.capacity;
        }
    }
    const std::size_t bytes = headers.size() * sizeof(UnitLog);
    GCMOE_RETURN_IF_ERROR(headers_.allocate(bytes, "the logs of a trace"));
    return cuda_status(
        cudaMemcpy(headers_.as<UnitLog>(), headers.data(), bytes, cudaMemcpyHostToDevice),
        "emptying the logs of a trace");
}

device::GpuLogs DeviceLogs::logs() const {
    if (ranges_.empty()) return {};
    UnitLog* const dispatch = headers_.as<UnitLog>();
    UnitLog* const compute = dispatch + ranges_[0].num_logs;
    UnitLog* const combine = compute + ranges_[1].num_logs;
    return {dispatch, compute, combine, combine + ranges_[2].num_logs};
}

Status DeviceLogs::append(int rank, trace::Trace* out) const {
    std::vector<UnitLog> headers(headers_.bytes() / sizeof(UnitLog));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaMemcpy(headers.data(), headers_.as<UnitLog>(),
                                                 headers_.bytes(), cudaMemcpyDeviceToHost),
                                      "reading the logs of a trace"));
    std::size_t at = 0;
    for (const Range& range : ranges_) {
        for (std::size_t i = 0; i < range.num_logs; ++i) {
            const UnitLog& log = headers[at++];
            if (log.num_events == 0 && log.num_dropped == 0) continue;
            trace::Track track;
            track.rank = rank;
            track.roles = range.roles;
            track.unit = static_cast<int>(i / range.unit_logs);
            if (range.unit_logs != 1) track.warp = static_cast<int>(i % range.unit_logs);
            track.num_dropped = log.num_dropped;
            track.events.resize(log.num_events);
            GCMOE_RETURN_IF_ERROR(
                cuda_status(cudaMemcpy(track.events.data(), log.events,
                                       log.num_events * sizeof(Event), cudaMemcpyDeviceToHost),
                            "reading the events of a trace"));
            out->tracks.push_back(std::move(track));
        }
    }
    return {};
}

}  // namespace gcmoe::cuda::runtime
