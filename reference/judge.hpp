// Judges a launch by numerics.md, "How error is judged": every rounding on its own, from the
// backend's own bits before it, then the whole against the bit-true layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gcmoe/status.hpp"
#include "reference/judge_row.hpp"
#include "reference/layer.hpp"

namespace gcmoe::reference {

inline constexpr Tolerance kCpuTolerance{1e-5, 1e-6};
// What a tensor core cuts off of scale cases' sums, 10^4 and more, decides between the ends of a
// clamp of 10 where a sum lies near 0: right stages, and 8e-2 of y seen. (a), (b) and (c) imply
// (d).
inline constexpr Tolerance kHopperTolerance{3e-3, 3e-4, false};

// End to end against the bit-true layer. A launch that misses them is held against what its sums
// may make of y (numerics.md), should that be more.
inline constexpr double kMaxRelL2 = 1e-2;
inline constexpr double kMinCosine = 0.99995;  // 1 / sqrt(1 + kMaxRelL2^2)

// What the whole launch is compared with.
struct RankExpected {
    std::vector<std::uint16_t> y;  // (num_tokens, hidden) bf16, bit-true
    std::vector<double> plain;     // (num_tokens, hidden) FP64 without requantisation
};

// One rank's verdict. Failures belong to the owner of the token.
struct RankJudgement {
    bool ok = true;
    std::string first_failure;     // names case, rank, token, slot, column and the values
    double worst_stage_error = 0;  // largest |error| / bound of activations and combine rows
    double worst_excess = 0;       // largest error beyond half a step, in units of a sum
    double worst_row_rms = 0;      // largest row RMS of that excess
    bool whole_judged = true;      // false: rel_l2 and cosine are reported, not judged
    double rel_l2 = 0;             // y against the bit-true layer
    double cosine = 1;
    double max_rel_l2 = kMaxRelL2;  // what they were judged by
    double min_cosine = kMinCosine;
    double mean_abs = 0;
    double max_abs = 0;
    double plain_rel_l2 = 0;     // y against plain FP64: reported, not judged
    std::int64_t num_slots = 0;  // live slots judged
};

// Judges all ranks. Shapes: outputs, expected, out (num_ranks). Errors: those of the weight source.
//   (a) second-GEMM inputs of every slot: codes and scales against the FP64 first GEMM of x
//   (b) combine rows against the FP64 second GEMM of the backend's own codes
//   (c) y bit-equal to the FP32 slot-order sum of the backend's own combine rows and shared row
//   (d) y against the bit-true layer, where sums cancel with what they may be off; a rank without
//   live slots: exact zeros or the shared part.
//       Scale cases only if the tolerance says so.
// (a) and (b) hold for the shared expert alike. NaN passes nowhere.
Status judge_layer(const Problem& problem, const std::vector<RankOutputs>& outputs,
                   const std::vector<RankExpected>& expected, const Tolerance& tolerance,
                   std::vector<RankJudgement>* out);

// Keeps what judge_layer needs of the bit-true layer.
std::vector<RankExpected> take_expected(std::vector<RankStages> stages);

}  // namespace gcmoe::reference
