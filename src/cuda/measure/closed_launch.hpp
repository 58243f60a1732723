// A launch in a graph together with what the paper's operator ends with and this one does not need:
// a barrier over the ranks, and the clearing of its counters. A model of that cost for `gcmoe bench
// --ablation closing`; nothing of the product calls it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/measure/launch_timer.hpp"
#include "gcmoe/status.hpp"
#include "layout/regions.hpp"

namespace gcmoe::cuda::measure {

// One kernel of one CTA behind role 3: the clearing first, so that who has met finds clean words.
struct ClosingWork {
    bool clears = false;  // zeroes a room of the same regions; the rank's own signals stay
    bool meets = false;   // adds to the rank's own word at system scope, waits until it is seen:
                          // the barrier of one rank
};

class ClosedLaunch {
  public:
    virtual ~ClosedLaunch() = default;

    // Captures `roles`, which puts a launch on `stream`, and the closing kernel behind it (nothing:
    // no kernel) into a graph. Callers: the operator of `roles` outlives it and is not launched
    // otherwise meanwhile. Errors: those of roles, kUnsupported (device memory), kInternal.
    static Status create(const Work& roles, const std::optional<ClosingWork>& closing,
                         const layout::RegionList& cleared, void* stream,
                         std::unique_ptr<ClosedLaunch>* out);

    // On the stream of creation.
    virtual Status launch() = 0;
    virtual Status synchronize() = 0;

    // The room of the regions, all ones until the kernel has run, and how many launches have met;
    // after synchronize(). Errors: kInternal.
    virtual Status read(std::vector<unsigned char>* room, std::size_t* num_met) = 0;
};

}  // namespace gcmoe::cuda::measure
