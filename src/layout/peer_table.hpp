// How a kernel reaches its peers: one trivially copyable descriptor, passed by value.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.hpp"

namespace gcmoe::layout {

// 72 = the largest NVLink domain (NVL72); every offset costs 8 of a launch's parameter bytes.
inline constexpr int kMaxRanks = 72;

// Addresses of all ranks' symmetric heaps, as distances from the own one.
struct PeerTable {
    std::uint64_t base = 0;               // own heap
    std::int64_t offset[kMaxRanks] = {};  // heap of rank r = base + offset[r]; offset[rank] = 0
    std::uint32_t rank = 0;
    std::uint32_t num_ranks = 0;

    [[nodiscard]] GCMOE_HD std::uint8_t* heap(int peer) const {
        return reinterpret_cast<std::uint8_t*>(base + static_cast<std::uint64_t>(offset[peer]));
    }
};
static_assert(sizeof(PeerTable) == 592, "8 base + 576 offsets + 8 rank and count");
static_assert(std::is_trivially_copyable_v<PeerTable>);

}  // namespace gcmoe::layout
