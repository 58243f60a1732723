// Role 2's main loops alone: what streaming FP4 weights through them takes without routing,
// signals, tickets, activation and requantisation around them.
#pragma once

#include <memory>

#include "cuda/measure/loop_geometry.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::cuda::measure {

// Live rows an expert may have in a loop.
inline constexpr int kLoopRows[] = {8, 16, 24, 32, 48, 64};

struct LoopShape {
    int hidden = 0;  // a multiple of 256
    int inter = 0;   // a multiple of 128
    int experts = 0;
    int rows = 0;       // one of kLoopRows
    int most_ctas = 0;  // that a launch will have
    int kept = 1;       // rounds of a CTA whose sums stay: 1 costs no traffic to the memory
};

// Random weights and tokens on the current device, and the kernel over them. A launch multiplies
// every expert's matrices with the expert's tokens; CTA i takes tasks i, i + CTAs, ... of 256 rows.
class StreamLoop {
  public:
    virtual ~StreamLoop() = default;

    // The weights' window positions are 8..19, the tokens' codes all E4M3 codes but NaN, their
    // scales in [0.5, 1.5). Sums are NaN until a launch writes them.
    // Errors: kBadInput (a size that has no loop), kUnsupported (device memory), kInternal.
    static Status create(const LoopShape& shape, std::unique_ptr<StreamLoop>* out);

    [[nodiscard]] virtual const LoopGeometry& geometry() const = 0;

    // Device memory, see loop_geometry.hpp.
    [[nodiscard]] virtual const std::uint8_t* tiles() const = 0;
    [[nodiscard]] virtual const std::uint8_t* codes() const = 0;
    [[nodiscard]] virtual const float* scales() const = 0;
    [[nodiscard]] virtual const float* sums() const = 0;

    // One launch of `ctas` CTAs of 640 threads, one an SM. Callers: 1 <= ctas <= most_ctas, and no
    // more than the device has SMs. Ordering: on `stream`, a cudaStream_t. Errors: kInternal.
    virtual Status launch(int ctas, void* stream) = 0;
};

}  // namespace gcmoe::cuda::measure
