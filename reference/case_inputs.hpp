// The inputs of a suite's case: functions of (case name, rank, global shape) alone.
#pragma once

#include <string_view>

#include "gcmoe/status.hpp"
#include "reference/inputs.hpp"
#include "reference/suite.hpp"

namespace gcmoe::reference {

// Cases with rows_of_codes have weights up to 6 * 2^127. x * 2^-20 keeps a gate row of code 254
// finite (sums near 2^113), the clamp bounds the activations by 100, and weights * 2^-16 keep an
// output column of code 254 finite (near 2^124).
inline constexpr int kExtremeXExponent = -20;
inline constexpr int kExtremeWeightExponent = -16;

// One rank's inputs: x = nearly normal numbers of standard deviation 1, quantised as shape asks.
// Rows past the rank's tokens hold zeros and unused slots; in poisoned cases NaN codes, NaN scales
// and NaN weights (0xFF) with valid ids, and the weights of unused slots are NaN. Errors: kBadInput
// if the shape has too few experts for the routing.
Status make_inputs(const SuiteCase& suite_case, CaseSize size, const Shape& shape, int rank,
                   RankInputs* out);

// All ranks. Shapes: out (num_ranks).
Status make_all_inputs(const SuiteCase& suite_case, CaseSize size, const Shape& shape,
                       std::vector<RankInputs>* out);

// One token's choice of experts and their scores, before masking; -1 = unused.
struct Choice {
    std::vector<std::int64_t> experts;  // (topk)
    std::vector<double> scores;         // (topk)
};
Choice choose_experts(const SuiteCase& suite_case, const Shape& shape, int rank, int token);

// factor * softmax over the scores of used slots; 0 elsewhere. Shapes: (topk).
std::vector<float> softmax_weights(const Choice& choice, double factor);

}  // namespace gcmoe::reference
