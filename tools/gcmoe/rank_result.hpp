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

// Sizes of what a peer sent, not believed: y of `num_tokens` tokens, and every stage or none.
// Errors: kBadInput with both sizes.
Status check_stages(const Shape& shape, int max_tokens, int num_tokens, bool has_stages,
                    const reference::RankStages& stages);

// Collective over a host group. On rank 0 `all` gets every rank's result, its own too; elsewhere it
// stays empty. Errors: those of a meeting, kUnsupported (no shared memory).
Status gather_results(RankResult own, group::HostSession* session, std::vector<RankResult>* all);

// Runs what a rank does by itself before the ranks meet next. If it fails, the others hear why at
// that meeting instead of waiting. session: null = ranks are no processes. Errors: those of `step`,
// what it throws, a failure that another rank brings.
Status or_decline(group::HostSession* session, const std::function<Status()>& step);

// Collective: nobody goes on before all ranks have come. `fields` must be equal on all ranks.
Status meet_ranks(const std::string& subject, group::Configuration fields,
                  group::HostSession* session);

}  // namespace gcmoe::cli
