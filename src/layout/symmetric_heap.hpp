// The symmetric heap: what peers read from a rank and write to it. One instance per workspace and
// rank.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.hpp"
#include "gcmoe/shape.hpp"
#include "layout/regions.hpp"

namespace gcmoe::layout {

// Offsets of the regions and strides of their rows. Trivially copyable: kernels get it by value.
struct SymmetricHeap {
    // Regions, in this order.
    std::uint64_t x = 0;            // (max_tokens, hidden) e4m3, rows of x_stride bytes
    std::uint64_t x_scale = 0;      // (max_tokens, x_scale_stride) 4-byte words
    std::uint64_t topk_idx = 0;     // (max_tokens, topk) int32 or int64
    std::uint64_t topk_weight = 0;  // (max_tokens, topk) float
    std::uint64_t recv_count = 0;   // (2, num_ranks, experts_per_rank) u64
    std::uint64_t recv_slot = 0;    // (2, num_ranks, max_tokens * topk) u32
    std::uint64_t combine = 0;      // (max_tokens, topk, hidden) bf16, rows of combine_stride bytes
    std::uint64_t done = 0;         // (num_ranks) u64
    std::uint64_t fault = 0;        // (num_ranks) u64
    std::uint64_t bytes = 0;

    std::uint32_t max_tokens = 0;
    std::uint32_t topk = 0;
    std::uint32_t num_ranks = 0;
    std::uint32_t experts_per_rank = 0;
    std::uint32_t x_stride = 0;        // bytes
    std::uint32_t x_scale_stride = 0;  // words: round_up(hidden / 128, 4)
    std::uint32_t combine_stride = 0;  // bytes
    std::uint32_t index_bytes = 0;     // 4 or 8

    [[nodiscard]] GCMOE_HD std::uint8_t* x_row(std::uint8_t* heap, std::uint32_t token) const {
        return heap + x + std::uint64_t{token} * x_stride;
    }
    [[nodiscard]] GCMOE_HD std::uint32_t* x_scale_row(std::uint8_t* heap,
                                                      std::uint32_t token) const {
        return reinterpret_cast<std::uint32_t*>(heap + x_scale) +
               std::uint64_t{token} * x_scale_stride;
    }
    [[nodiscard]] GCMOE_HD std::int64_t expert_id(const std::uint8_t* heap,
                                                  std::uint64_t slot) const {
        const std::uint8_t* ids = heap + topk_idx;
        return index_bytes == 8 ? reinterpret_cast<const std::int64_t*>(ids)[slot]
                                : reinterpret_cast<const std::int32_t*>(ids)[slot];
    }
    [[nodiscard]] GCMOE_HD float* weight(std::uint8_t* heap) const {
        return reinterpret_cast<float*>(heap + topk_weight);
    }
    // The count word of `source` for a local expert of the heap's owner, half g & 1.
    [[nodiscard]] GCMOE_HD std::uint64_t* recv_count_word(std::uint8_t* heap,
                                                          std::uint32_t generation,
                                                          std::uint32_t source,
                                                          std::uint32_t expert) const {
        const std::uint64_t row = std::uint64_t{generation & 1} * num_ranks + source;
        return reinterpret_cast<std::uint64_t*>(heap + recv_count) + row * experts_per_rank +
               expert;
    }
    // The slot list of `source`, half g & 1: (max_tokens * topk) u32 = token * topk + slot.
    [[nodiscard]] GCMOE_HD std::uint32_t* recv_slot_list(std::uint8_t* heap,
                                                         std::uint32_t generation,
                                                         std::uint32_t source) const {
        const std::uint64_t row = std::uint64_t{generation & 1} * num_ranks + source;
        return reinterpret_cast<std::uint32_t*>(heap + recv_slot) + row * max_slots();
    }
    // The combine row of one slot: (hidden) bf16.
    [[nodiscard]] GCMOE_HD std::uint16_t* combine_row(std::uint8_t* heap,
                                                      std::uint64_t slot) const {
        return reinterpret_cast<std::uint16_t*>(heap + combine + slot * combine_stride);
    }
    [[nodiscard]] GCMOE_HD std::uint64_t* done_word(std::uint8_t* heap,
                                                    std::uint32_t source) const {
        return reinterpret_cast<std::uint64_t*>(heap + done) + source;
    }
    [[nodiscard]] GCMOE_HD std::uint64_t* fault_word(std::uint8_t* heap,
                                                     std::uint32_t source) const {
        return reinterpret_cast<std::uint64_t*>(heap + fault) + source;
    }
    [[nodiscard]] GCMOE_HD std::uint64_t max_slots() const {
        return std::uint64_t{max_tokens} * topk;
    }
};
static_assert(std::is_trivially_copyable_v<SymmetricHeap>);

// Lays out the heap of one rank; the regions in order go to `list` (may be null).
SymmetricHeap make_symmetric_heap(const Shape& shape, int max_tokens, IndexType index_type,
                                  RegionList* list);

}  // namespace gcmoe::layout
