#include "check_processes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "group/group_state.hpp"
#include "rank_result.hpp"

namespace gcmoe::cli {

Status choose_own_ranks(const CheckOptions& options, const CheckTools& with, CaseRun* run) {
    if (!options.processes.is_rank()) {
        for (int rank = 0; rank < run->shape.num_ranks; ++rank) {
            run->own_ranks.push_back(size_of(rank));
        }
        return {};
    }
    if (with.group->num_ranks() != run->shape.num_ranks) {
        return option_error("--ranks", std::to_string(with.group->num_ranks()),
                            fmt::format("the case has {}", run->shape.num_ranks));
    }
    run->group = with.group;
    run->own_ranks = {size_of(*options.processes.rank)};
    return {};
}

bool meet_before_launch(int launch, CaseRun* run) {
    group::HostSession* session = run->group->state().host.get();
    if (session == nullptr) return true;
    const Status status = meet_ranks(
        fmt::format("case {}, launch {}", run->suite_case.name, launch + 1), {}, session);
    if (!status.ok()) note_failure(run, run->own_ranks.front(), status.message());
    return status.ok();
}

Status gather_case(const reference::RankOutputs& own, CaseRun* run, CaseReport* report,
                   bool* can_judge) {
    const std::size_t own_rank = run->own_ranks.front();
    RankResult result;
    result.difference = run->failures[own_rank];
    result.launch_s = report->launch_s;
    result.statistics.laps = report->laps;
    const int num_tokens = run->inputs[own_rank].num_tokens;
    if (own.act != nullptr) result.stages = copy_stages(run->shape, num_tokens, own);
    const auto check = [run](int rank, const RankResult& one) {
        // A rank that failed sends nothing.
        const bool has_stages = !one.stages.act.empty() || !one.stages.y.empty();
        const int rank_tokens = has_stages ? run->inputs[size_of(rank)].num_tokens : 0;
        const ResultSizes known{run->suite_case.capacity, rank_tokens, has_stages, false};
        return check_sizes(run->shape, known, one);
    };
    std::vector<RankResult> all;
    GCMOE_RETURN_IF_ERROR(
        gather_results(std::move(result), check, run->group->state().host.get(), &all));
    run->gathered.resize(run->ops.size());
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
        RankResult& one = all[rank];
        if (!one.difference.empty()) note_failure(run, rank, one.difference);
        report->launch_s = std::max(report->launch_s, one.launch_s);
        report->laps = std::max(report->laps, one.statistics.laps);
        *can_judge = *can_judge && !one.stages.act.empty();
        run->gathered[rank] = std::move(one.stages);
        std::vector<std::uint16_t>& y = run->y[kNumLaunches - 1][rank];
        y = run->gathered[rank].y;
        y.resize(std::max(y.size(), size_of(run->shape.hidden)), 0xFFFF);  // as without tokens
    }
    return {};
}

}  // namespace gcmoe::cli
