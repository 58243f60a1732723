// What a rank that is a process hands to rank 0 after its launches, so that one process can judge
// and report for all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "gcmoe/weights.hpp"
#include "group/host_session.hpp"
#include "reference/layer.hpp"

namespace gcmoe::cli {

struct RankResult {
    reference::RankStages stages;  // without `plain`
    Statistics statistics;         // without the placement
    PackReport packed;
    double launch_s = 0;
    std::string difference;  // a failure that the rank found by itself; empty = none
};

// Copies a rank's stages out of its memory. y: (num_tokens, hidden).
reference::RankStages copy_stages(const Shape& shape, int num_tokens,
                                  const reference::RankOutputs& from);

// What this process knows about a peer's result before it comes.
struct ResultSizes {
    int max_tokens = 0;
    int num_tokens = 0;
    bool has_stages = true;      // else y alone
    bool has_statistics = true;  // else no expert_rows
};

// What a peer sent is not believed: every size is compared before use. Errors: kBadInput with both
// sizes.
Status check_sizes(const Shape& shape, const ResultSizes& known, const RankResult& result);

// What ranks that hand over results must have in common.
group::Configuration results_configuration();

// Rank 0's word about a peer's result: check_sizes with what it knows about that rank.
using CheckResult = std::function<Status(int rank, const RankResult& result)>;

// Collective over a host group. On rank 0 `all` gets every rank's result, its own too, if `check`
// passes those of the others; elsewhere it stays empty. Errors, the same on every rank: those of a
// meeting and of `check`, kUnsupported (no shared memory).
Status gather_results(RankResult own, const CheckResult& check, group::HostSession* session,
                      std::vector<RankResult>* all);

// Runs what a rank does by itself before the ranks meet next. If it fails, the others hear why at
// that meeting instead of waiting. session: null = ranks are no processes. Errors: those of `step`,
// what it throws, a failure that another rank brings.
Status or_decline(group::HostSession* session, const std::function<Status()>& step);

// Collective: nobody goes on before all ranks have come. `fields` must be equal on all ranks.
Status meet_ranks(const std::string& subject, group::Configuration fields,
                  group::HostSession* session);

}  // namespace gcmoe::cli
