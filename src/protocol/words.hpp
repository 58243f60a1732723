// How the tagged 64-bit words are composed. A tag names the generation (and session), so that a
// word left by an earlier launch is never mistaken for one of this launch.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::protocol {

// recv_count: generation:32 | session:8 | count:24. 24 bits: 16.7 M slots of one source and expert.
inline constexpr std::uint32_t kMaxCount = (1U << 24) - 1;

GCMOE_HD constexpr std::uint64_t count_word(std::uint32_t generation, std::uint32_t session,
                                            std::uint32_t count) {
    return std::uint64_t{generation} << 32 | std::uint64_t{session & 0xFF} << 24 | count;
}

// block_table: generation:32 | session:8 | rows:8 | local expert:16.
GCMOE_HD constexpr std::uint64_t block_word(std::uint32_t generation, std::uint32_t session,
                                            std::uint32_t rows, std::uint32_t expert) {
    return std::uint64_t{generation} << 32 | std::uint64_t{session & 0xFF} << 24 |
           std::uint64_t{rows} << 16 | expert;
}

// num_blocks: generation:32 | count:32.
GCMOE_HD constexpr std::uint64_t num_blocks_word(std::uint32_t generation,
                                                 std::uint32_t num_blocks) {
    return std::uint64_t{generation} << 32 | num_blocks;
}

// done: generation:32 | session:32.
GCMOE_HD constexpr std::uint64_t done_word(std::uint32_t generation, std::uint32_t session) {
    return std::uint64_t{generation} << 32 | session;
}

// fault: session:32 | signal:8 | culprit + 1:16 | cause:8; zero = none.
GCMOE_HD constexpr std::uint64_t fault_word(std::uint32_t session, std::uint32_t cause,
                                            std::uint32_t signal, int culprit) {
    return std::uint64_t{session} << 32 | std::uint64_t{signal & 0xFF} << 24 |
           std::uint64_t{static_cast<std::uint32_t>(culprit + 1) & 0xFFFF} << 8 | (cause & 0xFF);
}

GCMOE_HD constexpr std::uint32_t generation_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word >> 32);
}
GCMOE_HD constexpr std::uint32_t session8_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word >> 24) & 0xFF;
}
GCMOE_HD constexpr std::uint32_t count_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word) & kMaxCount;
}
GCMOE_HD constexpr std::uint32_t block_rows_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word >> 16) & 0xFF;
}
GCMOE_HD constexpr std::uint32_t block_expert_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word) & 0xFFFF;
}
GCMOE_HD constexpr std::uint32_t fault_cause_of(std::uint64_t word) {
    return static_cast<std::uint32_t>(word) & 0xFF;
}
GCMOE_HD constexpr int fault_culprit_of(std::uint64_t word) {
    return static_cast<int>(static_cast<std::uint32_t>(word >> 8) & 0xFFFF) - 1;
}
GCMOE_HD constexpr std::uint32_t low_word(std::uint64_t word) {
    return static_cast<std::uint32_t>(word);
}

// Which of two generations is later, modulo 2^32: negative = `a` is before `b`.
GCMOE_HD constexpr std::int32_t generation_distance(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b);
}

}  // namespace gcmoe::protocol
