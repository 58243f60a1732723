// The ring's four signals. Each ring place holds token rows (x) and second-GEMM activations (act);
// both are handed over and given back with the same verbs; activations have one more (R33).
//
// l1_full_count: a lap adds BM rows, by role 1 for the rows it copied. The first GEMM waits for
//   == (lap + 1) * BM.
// l1_empty_count: a lap adds n1, one per first-GEMM task. Role 1 waits for == lap * n1 before it
//   refills x.
// l2_full_mask: a lap flips n1 bits, one per first-GEMM task. The second GEMM waits for bit j of
//   chunk j to differ from the lap parity.
// l2_empty_count: a lap adds n2, one per second-GEMM task. The first GEMM waits for == lap * n2
//   before it writes activations and origins, the second GEMM for at least that before its first
//   chunk (R33).
//
// Laps are compared modulo 2^32: counters wrap together with lap * n.
#pragma once

#include <cstdint>

#include "protocol/block_list.hpp"

namespace gcmoe::protocol {

GCMOE_HD inline WaitSite ring_site(Signal signal, const Block& block, std::uint64_t expected) {
    return WaitSite{
        .signal = signal, .expected = expected, .block = static_cast<std::int32_t>(block.index)};
}

// Token rows: role 1 produces, first-GEMM tasks consume.
template <SignalMemory M>
struct TokenRing {
    // Role 1: whether the place may be refilled, by a value of its l1_empty_count that was acquired
    // (R9). False only means that producer_acquire is to wait for it.
    [[nodiscard]] static GCMOE_HD bool is_free(const layout::RankMemory& memory, const Block& block,
                                               std::uint32_t empty_count) {
        return empty_count == block.lap * memory.plan.n1;
    }
    // Role 1: the place may be refilled (R9).
    [[nodiscard]] static GCMOE_HD bool producer_acquire(const layout::RankMemory& memory,
                                                        const Launch& launch, const Block& block) {
        if (!keeps<M>(Rule::kWaitL1Empty)) return true;
        const std::uint32_t target = block.lap * memory.plan.n1;
        const auto judge = [target](std::uint32_t value) {
            return judge_counter<M>(value, target);
        };
        return wait_for<M, M>(memory, launch, ring_site(Signal::kL1Empty, block, target),
                              memory.l1_empty_count(block.place), judge);
    }
    // Role 1: `rows` more rows of the block stand in the place. The unit that copied the block's
    // last row adds the missing ones up to BM as well (R10). Release: the rows were stored before
    // (R11).
    static GCMOE_HD void producer_commit(const layout::RankMemory& memory, const Block& block,
                                         std::uint32_t rows) {
        M::add_release(memory.l1_full_count(block.place), rows);
    }
    // First GEMM: all rows of the block may be read (R12).
    [[nodiscard]] static GCMOE_HD bool consumer_wait(const layout::RankMemory& memory,
                                                     const Launch& launch, const Block& block) {
        if (!keeps<M>(Rule::kWaitL1Full)) return true;
        const std::uint32_t target = (block.lap + 1) * memory.plan.row_block;
        const auto judge = [target](std::uint32_t value) {
            return judge_counter<M>(value, target);
        };
        return wait_for<M, M>(memory, launch, ring_site(Signal::kL1Full, block, target),
                              memory.l1_full_count(block.place), judge);
    }
    // First GEMM: this task has read x, and task 0 the origins too (R13, R14).
    static GCMOE_HD void consumer_release(const layout::RankMemory& memory, const Block& block) {
        M::add_release(memory.l1_empty_count(block.place), 1U);
    }
};

// Second-GEMM activations: first-GEMM tasks produce, second-GEMM tasks consume.
template <SignalMemory M>
struct ActivationRing {
    // First GEMM: the place's activations and origins may be overwritten (R15, R16).
    [[nodiscard]] static GCMOE_HD bool producer_acquire(const layout::RankMemory& memory,
                                                        const Launch& launch, const Block& block) {
        if (!keeps<M>(Rule::kWaitL2Empty)) return true;
        const std::uint32_t target = block.lap * memory.plan.n2;
        const auto judge = [target](std::uint32_t value) {
            return judge_counter<M>(value, target);
        };
        return wait_for<M, M>(memory, launch, ring_site(Signal::kL2Empty, block, target),
                              memory.l2_empty_count(block.place), judge);
    }
    // First GEMM: chunk `task` is written; task 0 has written the origins as well (R17).
    static GCMOE_HD void producer_commit(const layout::RankMemory& memory, const Block& block,
                                         std::uint32_t task) {
        M::xor_release(memory.l2_full_mask(block.place), std::uint64_t{1} << task);
    }
    // Second GEMM, before its first chunk: all of its place's last lap has been read (R33). A mask
    // bit tells two laps apart, not three: a task that looked while the last lap's bits were still
    // to flip would take the lap before that for its own. Ordered, not equal: other tasks of this
    // lap may have released already.
    [[nodiscard]] static GCMOE_HD bool consumer_acquire(const layout::RankMemory& memory,
                                                        const Launch& launch, const Block& block) {
        if (!keeps<M>(Rule::kWaitLastLap)) return true;
        const std::uint32_t target = block.lap * memory.plan.n2;
        const std::uint32_t n2 = memory.plan.n2;
        const auto judge = [target, n2](std::uint32_t value) {
            if (value - target < n2) return Seen::kReady;
            return judge_counter<M>(value, target);
        };
        return wait_for<M, M>(memory, launch, ring_site(Signal::kL2Empty, block, target),
                              memory.l2_empty_count(block.place), judge);
    }
    // Second GEMM: chunk `chunk_idx` may be read (R18, R19). `ready`: bits of the block's chunks
    // that this thread has already acquired in this task, 0 before the first wait; a chunk among
    // them is not looked at again. That holds for the whole task: the bits flip back only in the
    // next lap, which waits for this task's release (R15).
    [[nodiscard]] static GCMOE_HD bool consumer_wait(const layout::RankMemory& memory,
                                                     const Launch& launch, const Block& block,
                                                     std::uint32_t chunk_idx,
                                                     std::uint64_t* ready = nullptr) {
        if (!keeps<M>(Rule::kWaitMask)) return true;
        if (ready != nullptr && ((*ready >> chunk_idx) & 1) != 0) return true;
        // Before lap L every bit equals L & 1: flipped once a lap, zero before lap 0.
        const std::uint64_t before = keeps<M>(Rule::kMaskSense) ? block.lap & 1 : 0;
        const auto judge = [before, chunk_idx](std::uint64_t value) {
            return ((value >> chunk_idx) & 1) != before ? Seen::kReady : Seen::kNotYet;
        };
        WaitSite site = ring_site(Signal::kL2Full, block, std::uint64_t{1} << chunk_idx);
        std::uint64_t seen = 0;
        if (!wait_for<M, M>(memory, launch, site, memory.l2_full_mask(block.place), judge, &seen))
            return false;
        if (ready != nullptr) *ready = before != 0 ? ~seen : seen;
        return true;
    }
    // Second GEMM: this task has read the block's activations and origins (R20).
    static GCMOE_HD void consumer_release(const layout::RankMemory& memory, const Block& block) {
        M::add_release(memory.l2_empty_count(block.place), 1U);
    }
};

}  // namespace gcmoe::protocol
