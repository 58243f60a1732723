#include "run_verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "machine.hpp"
#include "reference/judge.hpp"
#include "reference/layer.hpp"

namespace gcmoe::cli {
namespace {

Status judge(const RunOptions& options, LayerRun* run,
             std::vector<reference::RankJudgement>* verdicts) {
    reference::Problem problem;
    problem.name = run->layer.title;
    problem.shape = run->layer.shape;
    problem.weights = run->source.get();
    problem.inputs = &run->inputs;
    problem.per_column = run->layer.weight_scales != "normal";
    problem.num_threads = std::max(1, find_processor().threads);
    ProgressBar bar("verifying experts", 2 * run->touched.size(), options.console.progress);
    run->source->on_expert([&bar] { bar.advance(); });
    std::vector<reference::RankOutputs> outputs;
    for (std::size_t rank = 0; rank < run->ops.size(); ++rank) {
        Operator* own = run->ops[rank].get();
        outputs.push_back(own != nullptr ? own_stages(problem.shape, run->outputs[rank], own)
                                         : run->gathered[rank].view(problem.shape));
    }
    std::vector<reference::RankStages> stages;
    Status status = reference::evaluate_layer(problem, &stages);
    if (status.ok()) {
        const std::vector<reference::RankExpected> expected =
            reference::take_expected(std::move(stages));
        status = reference::judge_layer(problem, outputs, expected, tolerance_of(options.backend),
                                        verdicts);
    }
    run->source->on_expert({});
    return status;
}

void add_verdict(const LayerRun& run, std::size_t rank, const reference::RankJudgement& judgement,
                 Verdict* out) {
    const bool live = run.inputs[rank].num_tokens > 0 &&
                      (run.layer.shape.shared_inter > 0 || judgement.num_slots > 0);
    out->num_slots += judgement.num_slots;
    out->worst_stage_error = std::max(out->worst_stage_error, judgement.worst_stage_error);
    out->whole_judged = out->whole_judged && judgement.whole_judged;
    if (live) {
        out->has_error = true;
        out->worst_rel_l2 = std::max(out->worst_rel_l2, judgement.rel_l2);
        out->max_rel_l2 = std::max(out->max_rel_l2, judgement.max_rel_l2);
        out->least_cosine = std::min(out->least_cosine, judgement.min_cosine);
        out->min_cosine = std::min(out->min_cosine, judgement.cosine);
        out->plain_rel_l2 = std::max(out->plain_rel_l2, judgement.plain_rel_l2);
    }
    if (!judgement.ok && out->reason.empty()) out->reason = judgement.first_failure;
    if (!judgement.ok && out->reason.empty()) out->reason = fmt::format("rank {} failed", rank);
}

}  // namespace

Status verify_run(const RunOptions& options, LayerRun* run, Verdict* out) {
    if (options.no_verify) {
        out->reason = "not compared (--no-verify)";
        if (!run->difference.empty()) out->reason = run->difference;
        return {};
    }
    std::vector<reference::RankJudgement> judgements;
    GCMOE_RETURN_IF_ERROR(judge(options, run, &judgements));
    out->judged = true;
    for (std::size_t rank = 0; rank < judgements.size(); ++rank) {
        add_verdict(*run, rank, judgements[rank], out);
    }
    if (out->reason.empty() && out->num_slots != run->num_slots) {
        out->reason =
            fmt::format("{} of {} live slots were compared", out->num_slots, run->num_slots);
    }
    if (!run->difference.empty()) out->reason = run->difference;
    out->verified = out->reason.empty();
    return {};
}

}  // namespace gcmoe::cli
