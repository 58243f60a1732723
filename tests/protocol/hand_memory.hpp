// The memory of a few ranks without operators, for tests that move signals by hand, and a signal
// memory on one thread whose clock and whose peers are the test's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gcmoe/shape.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/session.hpp"
#include "protocol/wait.hpp"

namespace gcmoe::test {

// Heaps and local memories of num_ranks ranks with one plan; signals as after init.
class HandMemory {
  public:
    static constexpr int kMaxTokens = 5;
    static constexpr std::uint32_t kRowBlock = 8;
    static constexpr std::uint32_t kRingBlocks = 4;

    explicit HandMemory(int num_ranks, const protocol::StartPoint& start = {}) {
        Shape shape;
        shape.hidden = 256;
        shape.inter = 384;
        shape.shared_inter = 256;
        shape.num_experts = 3 * num_ranks;
        shape.topk = 2;
        shape.num_ranks = num_ranks;
        layout::RankMemory one;
        one.plan.row_block = kRowBlock;
        one.plan.ring_blocks = kRingBlocks;
        one.plan.n1 = 3;
        one.plan.n2 = 2;
        one.plan.second_columns = 128;
        one.plan.dispatch_units = 2;
        one.plan.compute_units = 3;
        std::vector<layout::PlanMemory> plans = {one.plan};
        one.heap = layout::make_symmetric_heap(shape, kMaxTokens, IndexType::kInt64, nullptr);
        one.local = layout::make_local_memory(shape, {kMaxTokens, false}, &plans, nullptr);
        one.plan = plans[0];
        one.hidden_chunks = 2;
        one.inter_chunks = 3;
        one.shared_chunks = 2;
        for (int rank = 0; rank < num_ranks; ++rank) {
            heaps_.emplace_back(one.heap.bytes / 8);
            locals_.emplace_back(one.local.bytes / 8);
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            one.peers.base = address(r);
            one.peers.rank = static_cast<std::uint32_t>(rank);
            one.peers.num_ranks = static_cast<std::uint32_t>(num_ranks);
            for (std::size_t i = 0; i < heaps_.size(); ++i) {
                one.peers.offset[i] = static_cast<std::int64_t>(address(i) - address(r));
            }
            one.local_base = reinterpret_cast<std::uint8_t*>(locals_[r].data());
            ranks_.push_back(one);
            protocol::init_workspace_signals(one, start);
            protocol::init_plan_signals(one, start);
        }
    }

    [[nodiscard]] const layout::RankMemory& rank(int rank) const {
        return ranks_[static_cast<std::size_t>(rank)];
    }
    [[nodiscard]] const StallReport& report(int rank) const {
        return *ranks_[static_cast<std::size_t>(rank)].at<StallReport>(
            ranks_[static_cast<std::size_t>(rank)].local.stall_report);
    }
    // The fault word that `from` has stored at `to`.
    [[nodiscard]] std::uint64_t& fault(int from, int to) const {
        const layout::RankMemory& memory = rank(to);
        return *memory.heap.fault_word(memory.own_heap(), static_cast<std::uint32_t>(from));
    }

  private:
    [[nodiscard]] std::uint64_t address(std::size_t rank) {
        return reinterpret_cast<std::uint64_t>(heaps_[rank].data());
    }

    std::vector<std::vector<std::uint64_t>> heaps_;
    std::vector<std::vector<std::uint64_t>> locals_;
    std::vector<layout::RankMemory> ranks_;
};

// Plain accesses. Each look at the clock takes a microsecond; on_pause is what others do meanwhile.
struct HandSignals {
    using Peer = HandSignals;
    static constexpr std::uint32_t kPollsPerCheck = 4;

    static inline std::uint64_t now_ns = 1;
    static inline std::function<void(std::uint32_t polls)> on_pause;
    static inline std::function<void()> before_acquire;

    static void reset() {
        now_ns = 1;
        on_pause = nullptr;
        before_acquire = nullptr;
    }
    template <class T>
    static T load_relaxed(const T* word) {
        return *word;
    }
    template <class T>
    static T load_acquire(const T* word) {
        if (before_acquire) before_acquire();
        return *word;
    }
    template <class T>
    static void store_release(T* word, T value) {
        *word = value;
    }
    template <class T>
    static void add_release(T* word, T value) {
        *word += value;
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) { *word ^= bits; }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        const T old = *word;
        *word += value;
        return old;
    }
    static void pause(std::uint32_t polls) {
        if (on_pause) on_pause(polls);
    }
    static std::uint64_t clock_ns() { return now_ns += 1000; }
};

// A launch of `generation`, waits limited to 10 microseconds.
inline protocol::Launch hand_launch(std::uint32_t generation, std::uint32_t session = 1) {
    protocol::Launch launch;
    launch.generation = generation;
    launch.session = session;
    launch.unit = 2;
    launch.role = Role::kCompute;
    launch.limit_ns = 10000;
    return launch;
}

}  // namespace gcmoe::test
