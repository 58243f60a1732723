// The judge and the bit-true layer on a GPU: judge_layer's results for cases that a host would take
// hours for. Same formulas (judge_row.hpp, element.hpp), other orders of the FP64 sums.
#pragma once

#include <vector>

#include "gcmoe/status.hpp"
#include "reference/judge.hpp"

namespace gcmoe::reference {

// As judge_layer after evaluate_layer, on the current device; waits for all of it.
// problem: inputs on the host; the views of problem.weights are device pointers (a source of
// cuda/weights/generate_layer.hpp). outputs: (num_ranks), each pointer into device or host memory;
// what lies on the host is copied. out: (num_ranks).
// expected: null, or gets the bit-true layer (and the plain one) as take_expected leaves them.
// Callers: no launch of the judged layer is running.
// Errors: those of the weight source; kUnsupported for device memory, kInternal.
Status judge_layer_on_device(const Problem& problem, const std::vector<RankOutputs>& outputs,
                             const Tolerance& tolerance, std::vector<RankJudgement>* out,
                             std::vector<RankExpected>* expected);

}  // namespace gcmoe::reference
