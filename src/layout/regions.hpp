// A layout is one list of named regions. Sizes, offsets, the size report and the documentation
// table all come from the list; nobody else computes an offset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/math.hpp"

namespace gcmoe::layout {

// Start of every region: one alignment that satisfies bulk copies (16), rows (128) and atomics (8).
inline constexpr std::uint64_t kRegionAlign = 1024;

struct Region {
    std::string name;   // as in docs/protocol.md
    std::string shape;  // "(num_tokens, hidden) e4m3"
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

// Collects regions in order; each starts at a multiple of kRegionAlign.
class RegionList {
  public:
    // Adds a region and returns its offset.
    std::uint64_t add(std::string name, std::string shape, std::uint64_t bytes) {
        const std::uint64_t offset = bytes_;
        regions_.push_back({std::move(name), std::move(shape), offset, bytes});
        bytes_ = offset + round_up(bytes, kRegionAlign);
        return offset;
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }

  private:
    std::vector<Region> regions_;
    std::uint64_t bytes_ = 0;
};

}  // namespace gcmoe::layout
