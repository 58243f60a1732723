// The launch's blocks: role 1 writes the table, block by block in expert order, then how many there
// are; role 2 reads both. Table entry s mod B2 of sequence number s; B2 >= most blocks of a launch,
// so that role 1 never waits for role 2 here.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// One block of a launch and its place in the ring.
struct Block {
    std::uint64_t sequence = 0;  // s = s0 + index, over all launches of the plan
    std::uint32_t index = 0;     // in this launch
    std::uint32_t place = 0;     // s mod B
    std::uint32_t lap = 0;       // s div B, modulo 2^32
};

// The place of block `index` of this launch. B is a power of two, so that lap and place survive the
// wrap of everything that is narrower than u64.
GCMOE_HD inline Block block_at(const layout::RankMemory& memory, const Launch& launch,
                               std::uint32_t index) {
    Block block;
    block.sequence = launch.s0 + index;
    block.index = index;
    block.place = static_cast<std::uint32_t>(block.sequence) & (memory.plan.ring_blocks - 1);
    block.lap = static_cast<std::uint32_t>(block.sequence >> memory.plan.ring_shift);
    return block;
}

GCMOE_HD inline std::uint64_t* table_entry(const layout::RankMemory& memory, const Block& block) {
    return memory.block_table() + (block.sequence & (memory.plan.table_blocks - 1));
}

// Role 1: block `block` holds `rows` rows of a local expert. Release, GPU scope.
template <SignalMemory M>
GCMOE_HD void publish_block(const layout::RankMemory& memory, const Launch& launch,
                            const Block& block, std::uint32_t rows, std::uint32_t expert) {
    M::store_release(table_entry(memory, block),
                     block_word(launch.generation, launch.session, rows, expert));
}

// Role 1, last: the number of blocks. Ordering: everything that this unit wrote before (block
// table, rows_left targets, R7) is visible to who acquires it.
template <SignalMemory M>
GCMOE_HD void publish_num_blocks(const layout::RankMemory& memory, const Launch& launch,
                                 std::uint32_t num_blocks) {
    M::store_release(memory.num_blocks(), num_blocks_word(launch.generation, num_blocks));
}

// Role 2: waits for this launch's number of blocks.
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_num_blocks(const layout::RankMemory& memory, const Launch& launch,
                                            std::uint32_t* num_blocks) {
    const WaitSite site{.signal = Signal::kNumBlocks,
                        .expected = num_blocks_word(launch.generation, 0),
                        .behind_counts = true};
    std::uint64_t seen = 0;
    const auto judge = [&launch](std::uint64_t value) {
        return generation_of(value) == launch.generation ? Seen::kReady : Seen::kNotYet;
    };
    if (!wait_for<M, M>(memory, launch, site, memory.num_blocks(), judge, &seen)) return false;
    *num_blocks = low_word(seen);
    return true;
}

// Role 2: the table entry of a block, of this generation and session (R8).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_block(const layout::RankMemory& memory, const Launch& launch,
                                       const Block& block, std::uint32_t* rows,
                                       std::uint32_t* expert) {
    const std::uint64_t expected = block_word(launch.generation, launch.session, 0, 0);
    const WaitSite site{.signal = Signal::kBlockTable,
                        .expected = expected,
                        .block = static_cast<std::int32_t>(block.index)};
    std::uint64_t seen = 0;
    const auto judge = [expected](std::uint64_t value) {
        const bool tagged = value >> 24 == expected >> 24 || !keeps<M>(Rule::kBlockTag);
        return tagged ? Seen::kReady : Seen::kNotYet;
    };
    if (!wait_for<M, M>(memory, launch, site, table_entry(memory, block), judge, &seen))
        return false;
    *rows = block_rows_of(seen);
    *expert = block_expert_of(seen);
    return true;
}

}  // namespace gcmoe::protocol
