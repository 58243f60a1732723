#include "layout/symmetric_heap.hpp"

#include <fmt/format.h>

namespace gcmoe::layout {
namespace {

// Row starts of x and combine: one 128-byte line, so that a row never shares a line with another.
constexpr std::uint32_t kRowAlign = 128;

}  // namespace

SymmetricHeap make_symmetric_heap(const Shape& shape, int max_tokens, IndexType index_type,
                                  RegionList* list) {
    RegionList own;
    RegionList& regions = list != nullptr ? *list : own;
    const auto tokens = static_cast<std::uint64_t>(max_tokens);
    const auto topk = static_cast<std::uint64_t>(shape.topk);
    const auto ranks = static_cast<std::uint64_t>(shape.num_ranks);
    const auto experts = static_cast<std::uint64_t>(shape.experts_per_rank());
    const auto hidden = static_cast<std::uint32_t>(shape.hidden);
    const bool wide = index_type == IndexType::kInt64;

    SymmetricHeap heap;
    heap.max_tokens = static_cast<std::uint32_t>(max_tokens);
    heap.topk = static_cast<std::uint32_t>(shape.topk);
    heap.num_ranks = static_cast<std::uint32_t>(shape.num_ranks);
    heap.experts_per_rank = static_cast<std::uint32_t>(experts);
    heap.x_stride = round_up(hidden, kRowAlign);
    heap.x_scale_stride = round_up(hidden / 128, 4U);
    heap.combine_stride = round_up(2 * hidden, kRowAlign);
    heap.index_bytes = wide ? 8 : 4;

    heap.x = regions.add("x", fmt::format("({}, {}) e4m3", tokens, hidden), tokens * heap.x_stride);
    heap.x_scale =
        regions.add("x_scale", fmt::format("({}, {}) 4-byte words", tokens, heap.x_scale_stride),
                    tokens * heap.x_scale_stride * 4);
    heap.topk_idx =
        regions.add("topk_idx", fmt::format("({}, {}) {}", tokens, topk, wide ? "int64" : "int32"),
                    tokens * topk * heap.index_bytes);
    heap.topk_weight =
        regions.add("topk_weight", fmt::format("({}, {}) float", tokens, topk), tokens * topk * 4);
    heap.recv_count = regions.add("recv_count", fmt::format("(2, {}, {}) u64", ranks, experts),
                                  2 * ranks * experts * 8);
    heap.recv_slot = regions.add("recv_slot", fmt::format("(2, {}, {}) u32", ranks, tokens * topk),
                                 2 * ranks * tokens * topk * 4);
    heap.combine = regions.add("combine", fmt::format("({}, {}, {}) bf16", tokens, topk, hidden),
                               tokens * topk * heap.combine_stride);
    heap.done = regions.add("done", fmt::format("({}) u64", ranks), ranks * 8);
    heap.fault = regions.add("fault", fmt::format("({}) u64", ranks), ranks * 8);
    heap.bytes = regions.bytes();
    return heap;
}

}  // namespace gcmoe::layout
