// From numbers to verdicts and sentences: shared by the host's judge and the device's.
#pragma once

#include "reference/judge.hpp"
#include "reference/judge_row.hpp"

namespace gcmoe::reference {

// (a) and (b): adds a row's verdict to its rank's.
void add_row(const Problem& problem, int expert, const Place& place, const RowVerdict& row,
             RankJudgement* verdict);

// (c): y of a token and column has these bits, its combine rows sum up to those.
struct WrongSum {
    int token = 0;
    int column = 0;
    std::uint16_t seen = 0;
    std::uint16_t wanted = 0;
};
void add_wrong_sum(const Problem& problem, int rank, const WrongSum& wrong, RankJudgement* verdict);

// What (d) and (e) judge: y against the bit-true layer and against plain FP64. Where (d) is not
// judged, (c) has found what (e) would.
void add_whole(const Problem& problem, const DistanceSums& bit_true, const DistanceSums& plain,
               const Tolerance& tolerance, RankJudgement* verdict);

// What add_whole found against the bounds: the usual ones, or a relative L2 of `allowed` if that is
// more. Ok if (d) is not judged.
[[nodiscard]] bool whole_is_right(const RankJudgement& verdict, double allowed);
// Judges it.
void judge_distance(const Problem& problem, int rank, double allowed, RankJudgement* verdict);

// Adds what another part of the launch has found of the same rank.
void merge(const RankJudgement& part, RankJudgement* whole);

}  // namespace gcmoe::reference
