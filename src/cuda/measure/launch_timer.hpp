// Device time of work that a caller puts on a stream.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "gcmoe/status.hpp"

namespace gcmoe::cuda::measure {

// Puts work on LaunchTimer::stream() and returns without waiting for it.
using Work = std::function<Status()>;

// Times are those between two events around the work on one stream. Before each timed piece of work
// flush_bytes of memory are written, so that nothing the work reads is left in the L2.
class LaunchTimer {
  public:
    virtual ~LaunchTimer() = default;

    // On the current device. flush_bytes 0: nothing is written.
    // Errors: kUnsupported (device memory), kInternal.
    static Status create(std::size_t flush_bytes, std::unique_ptr<LaunchTimer>* out);

    // A cudaStream_t.
    [[nodiscard]] virtual void* stream() const = 0;

    // Flush, work, wait. Units: microseconds. Errors: those of the work, kInternal.
    virtual Status time_once(const Work& work, double* us) = 0;

    // `count` times flush and work without a wait in between; the time of each. Shapes: (count).
    virtual Status time_window(const Work& work, int count, std::vector<double>* us) = 0;

    // No flush and no wait for `seconds`: the works in turn, one behind the other. us = elapsed
    // time of the second half by its number of works, gaps included.
    virtual Status time_back_to_back(const std::vector<Work>& works, double seconds,
                                     double* us) = 0;
};

}  // namespace gcmoe::cuda::measure
