// The tagged words at their limits.
#include "protocol/words.hpp"

#include <gtest/gtest.h>

#include "cpu/stepper_memory.hpp"
#include "cpu/thread_memory.hpp"
#include "protocol/rules.hpp"

namespace gcmoe::protocol {
namespace {

constexpr std::uint32_t kMax = 0xFFFFFFFFU;

TEST(Words, CountAtItsLimits) {
    for (const std::uint32_t generation : {0U, 1U, kMax}) {
        for (const std::uint32_t session : {0U, 1U, 0xFFU, 0x100U, kMax}) {
            for (const std::uint32_t count : {0U, 1U, kMaxCount}) {
                const std::uint64_t word = count_word(generation, session, count);
                EXPECT_EQ(generation_of(word), generation);
                EXPECT_EQ(session8_of(word), session & 0xFF);
                EXPECT_EQ(count_of(word), count);
            }
        }
    }
}

TEST(Words, BlockAtItsLimits) {
    for (const std::uint32_t rows : {0U, 1U, 64U, 255U}) {
        for (const std::uint32_t expert : {0U, 1U, 0xFFFFU}) {
            const std::uint64_t word = block_word(kMax, 0x1FF, rows, expert);
            EXPECT_EQ(generation_of(word), kMax);
            EXPECT_EQ(session8_of(word), 0xFFU);
            EXPECT_EQ(block_rows_of(word), rows);
            EXPECT_EQ(block_expert_of(word), expert);
        }
    }
}

TEST(Words, NumBlocksAndDoneAtTheirLimits) {
    EXPECT_EQ(generation_of(num_blocks_word(kMax, 7)), kMax);
    EXPECT_EQ(low_word(num_blocks_word(kMax, kMax)), kMax);
    EXPECT_EQ(generation_of(done_word(kMax, 3)), kMax);
    EXPECT_EQ(low_word(done_word(3, kMax)), kMax);
}

TEST(Words, FaultAtItsLimits) {
    for (const int culprit : {-1, 0, 71, 0xFFFE}) {
        const std::uint64_t word = fault_word(kMax, 0xFF, 0xFF, culprit);
        EXPECT_EQ(generation_of(word), kMax) << "the session stands where generations stand";
        EXPECT_EQ(fault_culprit_of(word), culprit);
        EXPECT_EQ(fault_cause_of(word), 0xFFU);
    }
    EXPECT_NE(fault_word(0, 1, 0, -1), 0U) << "a fault is never the word that means none";
}

TEST(Words, FieldsDoNotOverlap) {
    EXPECT_EQ(count_word(kMax, 0xFF, kMaxCount), ~std::uint64_t{0});
    EXPECT_EQ(count_word(kMax, 0, 0) ^ count_word(0, 0xFF, 0) ^ count_word(0, 0, kMaxCount),
              ~std::uint64_t{0});
    EXPECT_EQ(block_word(kMax, 0, 0, 0) ^ block_word(0, 0xFF, 0, 0) ^ block_word(0, 0, 0xFF, 0) ^
                  block_word(0, 0, 0, 0xFFFF),
              ~std::uint64_t{0});
    EXPECT_EQ(fault_word(kMax, 0, 0, -1) ^ fault_word(0, 0xFF, 0, -1) ^ fault_word(0, 0, 0xFF, -1) ^
                  fault_word(0, 0, 0, 0xFFFE),
              ~std::uint64_t{0});
}

TEST(Words, GenerationDistanceAcrossTheWrap) {
    EXPECT_EQ(generation_distance(5, 5), 0);
    EXPECT_EQ(generation_distance(6, 5), 1);
    EXPECT_EQ(generation_distance(4, 5), -1);
    EXPECT_EQ(generation_distance(0, kMax), 1);
    EXPECT_EQ(generation_distance(kMax, 0), -1);
    EXPECT_EQ(generation_distance(2, kMax - 2), 5);
    EXPECT_GT(generation_distance(0x7FFFFFFFU, 0), 0);
    EXPECT_LT(generation_distance(0x80000001U, 0), 0);
}

TEST(Words, ProductPoliciesKeepEveryRule) {
    for (std::uint32_t i = 1; i < static_cast<std::uint32_t>(Rule::kCount); ++i) {
        EXPECT_TRUE(keeps<cpu::ThreadMemory>(static_cast<Rule>(i)));
        EXPECT_TRUE(keeps<cpu::StepperMemory>(static_cast<Rule>(i)));
    }
}

}  // namespace
}  // namespace gcmoe::protocol
