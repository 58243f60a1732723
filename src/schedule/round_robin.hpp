// Which row of which source stands at a position of an expert: slot i of source 0, 1, .., then slot
// i + 1. Spreads a block's pulls over all sources, so that no peer's link is the bottleneck of a
// block.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::schedule {

struct SourceRow {
    std::uint32_t source = 0;
    std::uint32_t index = 0;  // i-th slot of that source for the expert
};

// Walks the positions of one expert in order. counts(source) = slots of that source for the expert.
// Each step costs at most num_ranks looks; sources that have run out are passed over.
template <class Counts>
class RoundRobin {
  public:
    GCMOE_HD RoundRobin(const Counts& counts, std::uint32_t num_ranks)
        : counts_(counts), num_ranks_(num_ranks) {}

    // The next row; call at most sum(counts) times.
    GCMOE_HD SourceRow next() {
        while (counts_(source_) <= index_) step();
        const SourceRow row{source_, index_};
        step();
        return row;
    }

  private:
    GCMOE_HD void step() {
        if (++source_ == num_ranks_) {
            source_ = 0;
            ++index_;
        }
    }

    Counts counts_;
    std::uint32_t num_ranks_;
    std::uint32_t source_ = 0;
    std::uint32_t index_ = 0;
};

}  // namespace gcmoe::schedule
