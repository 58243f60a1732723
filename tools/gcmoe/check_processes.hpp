// Cases whose ranks are processes: each runs its own rank and compares its own memory; rank 0
// judges.
#pragma once

#include "case_run.hpp"
#include "check_case.hpp"

namespace gcmoe::cli {

// Which ranks this process runs, and in which group. Errors: kBadInput (--ranks of the suite).
Status choose_own_ranks(const CheckOptions& options, const CheckTools& with, CaseRun* run);

// Ranks as processes wait for each other: a rank that is ahead would store into memory that is
// still compared. False: a rank is missing, and that is this rank's failure.
bool meet_before_launch(int launch, CaseRun* run);

// Hands this rank's results to rank 0. `own`: empty if there is nothing to judge. On rank 0,
// can_judge says whether all ranks have something. Errors: those of a meeting.
Status gather_case(const reference::RankOutputs& own, CaseRun* run, CaseReport* report,
                   bool* can_judge);

}  // namespace gcmoe::cli
