// What a protocol without generations, whose counters start at zero in every launch, would have to
// clear behind one. Nothing of the product is cleared (docs/protocol.md): this list is for
// measuring what that saves.
#pragma once

#include "layout/rank_memory.hpp"
#include "layout/regions.hpp"

namespace gcmoe::layout {

// The regions by their names in the rank's own memory and with their sizes there, but for
// recv_count (one copy would do) and words (the tickets and counters among them); offsets are those
// of a room of their own.
RegionList cleared_words(const RankMemory& memory);

}  // namespace gcmoe::layout
