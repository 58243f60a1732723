// Compares every live token of a run with the bit-true reference, and every rounding on its own.
#pragma once

#include <cstdint>
#include <string>

#include "run_layer.hpp"

namespace gcmoe::cli {

struct Verdict {
    bool verified = false;
    std::string reason;          // why not; empty if verified
    bool judged = false;         // the figures below are there
    std::int64_t num_slots = 0;  // live slots that were judged
    bool has_error = false;      // some token is live: rel_l2 and cosine mean something
    double worst_rel_l2 = 0;
    double max_rel_l2 = 0;  // the limits that they were judged by
    double least_cosine = 1;
    bool whole_judged = true;  // false: rel_l2 and cosine are reported, not judged
    double min_cosine = 1;
    double worst_stage_error = 0;  // in units of its bound: above 1 fails
    double plain_rel_l2 = 0;       // against FP64 without requantisation: not judged
};

// Errors: those of the weight source. Callers: after launch_layer.
Status verify_run(const RunOptions& options, LayerRun* run, Verdict* out);

}  // namespace gcmoe::cli
