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

// The row at `position`, without walking: the number of rows with an index below i is
// sum over sources of min(count, i); bisect on i, then pass over the sources that have run out.
template <class Counts>
GCMOE_HD SourceRow row_at(const Counts& counts, std::uint32_t num_ranks, std::uint32_t position) {
    const auto rows_below = [&](std::uint32_t index) {
        std::uint64_t rows = 0;
        for (std::uint32_t s = 0; s < num_ranks; ++s) {
            const std::uint32_t count = counts(s);
            rows += count < index ? count : index;
        }
        return rows;
    };
    std::uint32_t low = 0;
    std::uint32_t high = position + 1;
    while (high - low > 1) {  // rows_below(low) <= position < rows_below(high)
        const std::uint32_t middle = low + (high - low) / 2;
        if (rows_below(middle) <= position)
            low = middle;
        else
            high = middle;
    }
    auto left = static_cast<std::uint32_t>(position - rows_below(low));
    for (std::uint32_t s = 0;; ++s) {
        if (counts(s) <= low) continue;
        if (left == 0) return {s, low};
        --left;
    }
}

}  // namespace gcmoe::schedule
