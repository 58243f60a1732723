// --spawn: every rank a child of this process, which collects what they say, passes signals on,
// waits for all of them and reports once.
#pragma once

#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe::cli {

struct SpawnRequest {
    std::string subcommand;
    int num_ranks = 1;
    double deadline_s = 0;  // of the ranks' waits: how long survivors of a lost rank may take
    bool json = false;
};

// Starts this process's own command line once for every rank, with --rank and --session instead of
// --spawn. Leaves the exit code: rank 0's if all ranks came to their end; else that of the first
// rank with an error of its own, 3 if one stalled, 1. Ends this process by the signal that it was
// sent, after all ranks have ended. Errors: kUnsupported (no folder, no process).
Status spawn_ranks(const SpawnRequest& request, int* exit_code);

}  // namespace gcmoe::cli
