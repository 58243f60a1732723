#include "reference/judge_report.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace gcmoe::reference {
namespace {

void fail(RankJudgement* verdict, std::string text) {
    if (verdict->ok) verdict->first_failure = std::move(text);
    verdict->ok = false;
}

void raise_to(double* worst, double value) { *worst = numerics::max_nan(*worst, value); }

std::string place_text(const Problem& problem, int expert, const Place& place) {
    if (expert == kSharedExpert) {
        return fmt::format("case {}: rank {} token {} shared expert", problem.name, place.rank,
                           place.token);
    }
    return fmt::format("case {}: rank {} token {} slot {} (expert {} on rank {})", problem.name,
                       place.rank, place.token, place.slot, expert,
                       expert / problem.shape.experts_per_rank());
}

std::string failure_text(const char* what, const RowFailure& failure) {
    switch (failure.kind) {
        case RowFailure::Kind::kNone:
            return {};
        case RowFailure::Kind::kScale:
            return fmt::format("{} columns {}..{}: scale {:.9g}, expected {:.9g} / 448", what,
                               failure.column, failure.last_column, failure.seen, failure.wanted);
        case RowFailure::Kind::kElement:
            return fmt::format("{} column {}: {:.9g}, expected {:.9g} +- {:.3g}", what,
                               failure.column, failure.seen, failure.wanted, failure.bound);
        case RowFailure::Kind::kRowRms:
            return fmt::format(
                "{} row: RMS beyond half a step is {:.3g} of its unit, allowed "
                "{:.3g}",
                what, failure.seen, failure.bound);
    }
    return {};
}

struct Distance {
    double rel_l2 = 0;
    double cosine = 1;
    double mean_abs = 0;
};

Distance distance_of(const DistanceSums& sums) {
    Distance distance;
    if (sums.count == 0) return distance;
    distance.mean_abs = sums.abs_errors / static_cast<double>(sums.count);
    if (sums.errors == 0.0) return distance;  // also both zero
    distance.rel_l2 = std::sqrt(sums.errors / sums.wanted_norm);
    distance.cosine = sums.product / std::sqrt(sums.seen_norm * sums.wanted_norm);
    return distance;
}

}  // namespace

void add_row(const Problem& problem, int expert, const Place& place, const RowVerdict& row,
             RankJudgement* verdict) {
    const std::pair<const char*, const RowTally*> stages[] = {{"second-GEMM input", &row.act},
                                                              {"second-GEMM output", &row.output}};
    for (const auto& [what, tally] : stages) {
        raise_to(&verdict->worst_stage_error, tally->worst_error);
        raise_to(&verdict->worst_excess, tally->worst_excess);
        raise_to(&verdict->worst_row_rms, tally->rms);
        if (tally->first.kind == RowFailure::Kind::kNone || !verdict->ok) continue;
        fail(verdict, place_text(problem, expert, place) + " " + failure_text(what, tally->first));
    }
    verdict->num_slots += place.slot == kSharedSlot ? 0 : 1;
}

void add_wrong_sum(const Problem& problem, int rank, const WrongSum& wrong,
                   RankJudgement* verdict) {
    fail(verdict,
         fmt::format("case {}: rank {} token {} y column {}: bits 0x{:04x} = {:.9g}, the sum of "
                     "its combine rows is 0x{:04x} = {:.9g}",
                     problem.name, rank, wrong.token, wrong.column, wrong.seen,
                     numerics::bf16_to_float(wrong.seen), wrong.wanted,
                     numerics::bf16_to_float(wrong.wanted)));
}

void add_whole(const Problem& problem, const DistanceSums& bit_true, const DistanceSums& plain,
               const Tolerance& tolerance, RankJudgement* verdict) {
    const Distance distance = distance_of(bit_true);
    verdict->rel_l2 = distance.rel_l2;
    verdict->cosine = distance.cosine;
    verdict->mean_abs = distance.mean_abs;
    verdict->max_abs = bit_true.max_abs;
    verdict->plain_rel_l2 = distance_of(plain).rel_l2;
    verdict->whole_judged = !problem.per_column || tolerance.end_to_end_scales;
}

bool whole_is_right(const RankJudgement& verdict, double allowed) {
    if (!verdict.whole_judged) return true;
    if (!(allowed > kMaxRelL2) || !std::isfinite(allowed)) {
        return verdict.rel_l2 <= kMaxRelL2 && verdict.cosine >= kMinCosine;
    }
    return verdict.rel_l2 <= allowed && verdict.cosine >= 1.0 / std::sqrt(1.0 + allowed * allowed);
}

void judge_distance(const Problem& problem, int rank, double allowed, RankJudgement* verdict) {
    if (allowed > kMaxRelL2 && std::isfinite(allowed)) {
        verdict->max_rel_l2 = allowed;
        verdict->min_cosine = 1.0 / std::sqrt(1.0 + allowed * allowed);
    }
    if (whole_is_right(*verdict, allowed)) return;
    fail(verdict, fmt::format("case {}: rank {} y against the bit-true layer: relative L2 {:.4g} "
                              "(at most {:.4g}), cosine {:.8f} (at least {:.8g})",
                              problem.name, rank, verdict->rel_l2, verdict->max_rel_l2,
                              verdict->cosine, verdict->min_cosine));
}

void merge(const RankJudgement& part, RankJudgement* whole) {
    if (!part.ok) fail(whole, part.first_failure);
    raise_to(&whole->worst_stage_error, part.worst_stage_error);
    raise_to(&whole->worst_excess, part.worst_excess);
    raise_to(&whole->worst_row_rms, part.worst_row_rms);
    whole->num_slots += part.num_slots;
}

}  // namespace gcmoe::reference
