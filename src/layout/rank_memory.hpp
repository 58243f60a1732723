// Everything a role needs to find its bytes: own heap, peers' heaps, local memory, the plan's
// signals.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.hpp"
#include "gcmoe/stall_report.hpp"
#include "layout/local_memory.hpp"
#include "layout/peer_table.hpp"
#include "layout/symmetric_heap.hpp"

namespace gcmoe::layout {

// Passed by value to every role. Typed pointers into the regions; no ordering here.
struct RankMemory {
    PeerTable peers;
    SymmetricHeap heap;
    LocalMemory local;
    PlanMemory plan;
    std::uint8_t* local_base = nullptr;
    std::uint32_t hidden_chunks = 0;  // hidden / 128
    std::uint32_t inter_chunks = 0;   // inter / 128
    std::uint32_t shared_chunks = 0;  // shared_inter / 128, 0 without a shared expert

    template <class T>
    [[nodiscard]] GCMOE_HD T* at(std::uint64_t offset) const {
        return reinterpret_cast<T*>(local_base + offset);
    }
    [[nodiscard]] GCMOE_HD std::uint8_t* own_heap() const {
        return peers.heap(static_cast<int>(rank()));
    }
    [[nodiscard]] GCMOE_HD std::uint32_t rank() const { return peers.rank; }
    [[nodiscard]] GCMOE_HD StateWords* state() const { return at<StateWords>(local.state); }
    [[nodiscard]] GCMOE_HD PlanWords* words() const { return at<PlanWords>(plan.words); }
    [[nodiscard]] GCMOE_HD std::uint64_t* block_table() const {
        return at<std::uint64_t>(local.block_table);
    }
    [[nodiscard]] GCMOE_HD std::uint64_t* num_blocks() const {
        return at<std::uint64_t>(local.num_blocks);
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* source_count(std::uint32_t source) const {
        return at<std::uint32_t>(local.source_count) + source * heap.experts_per_rank;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* source_offset(std::uint32_t source) const {
        return at<std::uint32_t>(local.source_offset) + source * heap.experts_per_rank;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* rows_left() const {
        return at<std::uint32_t>(local.rows_left);
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* rows_left_target() const {
        return at<std::uint32_t>(local.rows_left_target);
    }
    [[nodiscard]] GCMOE_HD ChunkedRows ring_x() const {
        return {at<std::uint8_t>(local.ring_x), at<std::uint32_t>(local.ring_x_scale),
                plan.row_block, hidden_chunks};
    }
    [[nodiscard]] GCMOE_HD ChunkedRows ring_act() const {
        return {at<std::uint8_t>(local.ring_act), at<std::uint32_t>(local.ring_act_scale),
                plan.row_block, inter_chunks};
    }
    [[nodiscard]] GCMOE_HD Origin* ring_origins(std::uint32_t place) const {
        return at<Origin>(local.ring_origin) + std::uint64_t{place} * plan.row_block;
    }
    [[nodiscard]] GCMOE_HD Origin* act_origins(std::uint32_t place) const {
        return at<Origin>(local.act_origin) + std::uint64_t{place} * plan.row_block;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* l1_full_count(std::uint32_t place) const {
        return at<std::uint32_t>(plan.l1_full_count) + place;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* l1_empty_count(std::uint32_t place) const {
        return at<std::uint32_t>(plan.l1_empty_count) + place;
    }
    [[nodiscard]] GCMOE_HD std::uint64_t* l2_full_mask(std::uint32_t place) const {
        return at<std::uint64_t>(plan.l2_full_mask) + place;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* l2_empty_count(std::uint32_t place) const {
        return at<std::uint32_t>(plan.l2_empty_count) + place;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* shared_ready(std::uint32_t row_block_idx) const {
        return at<std::uint32_t>(local.shared_ready) + row_block_idx;
    }
};
static_assert(std::is_trivially_copyable_v<RankMemory>);

}  // namespace gcmoe::layout
