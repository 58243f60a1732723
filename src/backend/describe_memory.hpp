// From a rank's setup and addresses to what its roles get: the same for every backend.
#pragma once

#include <cstdint>

#include "backend/rank_backend.hpp"
#include "layout/rank_memory.hpp"

namespace gcmoe::backend {

// `peers` without ranks: not connected yet, only the own heap is known.
inline layout::RankMemory describe_memory(const RankSetup& setup, int plan_idx,
                                          const layout::PeerTable& peers, std::uint8_t* heap,
                                          std::uint8_t* local) {
    layout::RankMemory memory;
    memory.peers = peers;
    if (memory.peers.num_ranks == 0) {
        memory.peers.base = reinterpret_cast<std::uint64_t>(heap);
        memory.peers.rank = static_cast<std::uint32_t>(setup.rank);
        memory.peers.num_ranks = 1;
    }
    memory.heap = setup.heap;
    memory.local = setup.local;
    memory.plan = setup.plans[static_cast<std::size_t>(plan_idx)].memory;
    memory.local_base = local;
    memory.hidden_chunks = static_cast<std::uint32_t>(setup.shape.hidden / layout::kChunk);
    memory.inter_chunks = static_cast<std::uint32_t>(setup.shape.inter / layout::kChunk);
    memory.shared_chunks = static_cast<std::uint32_t>(setup.shape.shared_inter / layout::kChunk);
    return memory;
}

}  // namespace gcmoe::backend
