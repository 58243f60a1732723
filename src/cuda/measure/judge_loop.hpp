// A stand-alone loop's sums against the host's: decoded weights times tokens in FP64.
#pragma once

#include <vector>

#include "cuda/measure/stream_loop.hpp"

namespace gcmoe::cuda::measure {

// What a loop's sums may differ: the tensor core adds a chunk's products in fewer bits than FP32.
inline constexpr double kLoopErrorBound = 1e-3;

// Where a task ran in the last launch.
struct LoopPlace {
    int ctas = 1;  // of the launch
    int cta = 0;
    int round = 0;  // of the CTA; one of the last LoopGeometry::kept
};

// Tasks of a CTA in a launch of `ctas`.
[[nodiscard]] int loop_rounds(const LoopGeometry& geometry, int ctas, int cta);

// The largest relative error of the task's weight rows `rows` (0..255): over a row's sums, all
// tokens, the root of the squared differences by that of all products' squares, the size of such a
// sum where signs are random. NaN where a sum was not written. Waits for the device.
// Callers: at least one row; the round exists. Errors: kInternal.
Status judge_loop(const StreamLoop& loop, const LoopPlace& place, const std::vector<int>& rows,
                  double* error);

}  // namespace gcmoe::cuda::measure
