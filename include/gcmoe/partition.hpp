// How a rank's units (SMs of a GPU, threads of the CPU backend) are shared between the roles.
#pragma once

#include "gcmoe/status.hpp"

namespace gcmoe {

// dispatch_units run role 1, compute_units run roles 2 and 3.
struct Partition {
    // The floors. A GPU needs 32 compute SMs to stream weights at memory speed; virtual ranks and
    // the CPU backend lower the floor explicitly, and `gcmoe info` says so.
    struct Limits {
        int min_dispatch = 2;
        int min_compute = 32;
        bool even_compute = true;  // SMs are handed out in pairs
    };
    // One worker each: what the CPU backend needs at least.
    static constexpr Limits cpu_limits() { return {1, 1, false}; }

    int dispatch_units = 0;
    int compute_units = 0;
};

// Checks the floors and that both parts sum to units_of_share (0 = no sum rule).
// Errors: kBadConfig naming the field, its value and the limit.
Status validate(const Partition& partition, const Partition::Limits& limits, int units_of_share);

}  // namespace gcmoe
