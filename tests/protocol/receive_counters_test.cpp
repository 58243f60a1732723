// Counts and lists as the owner reads them, word by word.
#include "protocol/receive_counters.hpp"

#include <gtest/gtest.h>

#include "protocol/hand_memory.hpp"

namespace gcmoe::protocol {
namespace {

using test::hand_launch;
using test::HandMemory;
using test::HandSignals;

constexpr std::uint32_t kMaxSlots = 10;  // HandMemory: 5 tokens of 2 slots

class ReceiveCounters : public testing::Test {
  protected:
    void SetUp() override { HandSignals::reset(); }

    // Source 2 announces counts to owner 0.
    void publish(const Launch& launch, const std::vector<std::uint32_t>& counts) {
        publish_counts<HandSignals>(memory_.rank(2), launch, 0, counts.data());
    }
    bool receive(const Launch& launch) {
        return receive_counts<HandSignals>(memory_.rank(0), launch, 2);
    }
    std::uint64_t* word(std::uint32_t generation, std::uint32_t expert) {
        const layout::RankMemory& owner = memory_.rank(0);
        return owner.heap.recv_count_word(owner.own_heap(), generation, 2, expert);
    }
    void expect_corrupt(Signal signal, std::uint64_t expected, std::uint64_t seen) {
        EXPECT_EQ(memory_.report(0).cause, StallCause::kCorrupt);
        EXPECT_EQ(memory_.report(0).signal, signal);
        EXPECT_EQ(memory_.report(0).peer, 2);
        EXPECT_EQ(memory_.report(0).expected, expected);
        EXPECT_EQ(memory_.report(0).seen, seen);
        EXPECT_NE(memory_.fault(0, 1), 0U) << "the others must leave, too";
    }

    HandMemory memory_{3, {.generation = 4, .session = 3}};
};

TEST_F(ReceiveCounters, CountsAndOffsets) {
    const Launch launch = hand_launch(5, 3);
    publish(launch, {4, 0, 6});
    ASSERT_TRUE(receive(launch));
    const layout::RankMemory& owner = memory_.rank(0);
    const std::uint32_t* counts = owner.source_count(2);
    const std::uint32_t* offsets = owner.source_offset(2);
    EXPECT_EQ(std::vector<std::uint32_t>(counts, counts + 3),
              (std::vector<std::uint32_t>{4, 0, 6}));
    EXPECT_EQ(std::vector<std::uint32_t>(offsets, offsets + 3),
              (std::vector<std::uint32_t>{0, 4, 4}));
}

TEST_F(ReceiveCounters, GenerationsStandInDifferentHalves) {
    publish(hand_launch(5, 3), {1, 2, 3});
    publish(hand_launch(6, 3), {4, 3, 2});
    ASSERT_TRUE(receive(hand_launch(5, 3)));
    EXPECT_EQ(memory_.rank(0).source_count(2)[0], 1U);
    ASSERT_TRUE(receive(hand_launch(6, 3)));
    EXPECT_EQ(memory_.rank(0).source_count(2)[0], 4U);
    EXPECT_NE(slot_list<HandSignals>(memory_.rank(2), 0, 2, 5),
              slot_list<HandSignals>(memory_.rank(2), 0, 2, 6));
    EXPECT_EQ(slot_list<HandSignals>(memory_.rank(2), 0, 2, 0xFFFFFFFFU),
              slot_list<HandSignals>(memory_.rank(2), 0, 2, 5));
}

TEST_F(ReceiveCounters, AnOlderGenerationIsNotYet) {
    EXPECT_FALSE(receive(hand_launch(5, 3)));
    EXPECT_EQ(memory_.report(0).cause, StallCause::kDeadline);
    EXPECT_EQ(memory_.report(0).signal, Signal::kRecvCount);
    EXPECT_EQ(memory_.report(0).peer, 2);
    EXPECT_EQ(memory_.report(0).expert, 0);
    EXPECT_EQ(memory_.report(0).expected, count_word(5, 3, 0));
    EXPECT_EQ(memory_.report(0).seen, count_word(3, 3, 0));
}

TEST_F(ReceiveCounters, AnotherSessionIsNotYet) {
    publish(hand_launch(5, 2), {1, 1, 1});
    EXPECT_FALSE(receive(hand_launch(5, 3)));
    EXPECT_EQ(memory_.report(0).cause, StallCause::kDeadline);
}

TEST_F(ReceiveCounters, ALaterGenerationIsCorrupt) {
    publish(hand_launch(7, 3), {1, 1, 1});
    EXPECT_FALSE(receive(hand_launch(5, 3)));
    expect_corrupt(Signal::kRecvCount, count_word(5, 3, 0), count_word(7, 3, 1));
}

TEST_F(ReceiveCounters, JudgedAcrossTheWrap) {
    constexpr std::uint32_t kLast = 0xFFFFFFFFU;
    EXPECT_EQ(judge_count<HandSignals>(count_word(kLast - 1, 3, 9), 0, 3), Seen::kNotYet);
    EXPECT_EQ(judge_count<HandSignals>(count_word(0, 3, 9), 0, 3), Seen::kReady);
    EXPECT_EQ(judge_count<HandSignals>(count_word(1, 3, 9), kLast, 3), Seen::kCorrupt);
    EXPECT_EQ(judge_count<HandSignals>(count_word(1, 4, 9), kLast, 3), Seen::kNotYet);
    // 8 bits of the session stand in a count word.
    EXPECT_EQ(judge_count<HandSignals>(count_word(0, 259, 9), 0, 3), Seen::kReady);
}

TEST_F(ReceiveCounters, CountsThatFillTheList) {
    publish(hand_launch(5, 3), {kMaxSlots, 0, 0});
    EXPECT_TRUE(receive(hand_launch(5, 3)));
    publish(hand_launch(6, 3), {3, 3, kMaxSlots - 6});
    EXPECT_TRUE(receive(hand_launch(6, 3)));
}

TEST_F(ReceiveCounters, OneCountTooLarge) {
    publish(hand_launch(5, 3), {0, kMaxCount, 0});
    EXPECT_FALSE(receive(hand_launch(5, 3)));
    expect_corrupt(Signal::kRecvCount, kMaxSlots, kMaxCount);
    EXPECT_EQ(memory_.report(0).expert, 1);
}

TEST_F(ReceiveCounters, CountsTooLargeTogether) {
    publish(hand_launch(5, 3), {4, 4, 3});
    EXPECT_FALSE(receive(hand_launch(5, 3)));
    expect_corrupt(Signal::kRecvCount, kMaxSlots, 11);
    EXPECT_EQ(memory_.report(0).expert, 2);
}

TEST_F(ReceiveCounters, ListEntries) {
    const Launch launch = hand_launch(5, 3);
    std::uint32_t* list = slot_list<HandSignals>(memory_.rank(2), 0, 2, 5);
    list[0] = kMaxSlots - 1;
    list[1] = kMaxSlots;
    std::uint32_t slot = 0;
    EXPECT_TRUE(received_slot<HandSignals>(memory_.rank(0), launch, 2, 0, &slot));
    EXPECT_EQ(slot, kMaxSlots - 1);
    EXPECT_FALSE(received_slot<HandSignals>(memory_.rank(0), launch, 2, 1, &slot));
    expect_corrupt(Signal::kRecvSlot, kMaxSlots, kMaxSlots);
}

}  // namespace
}  // namespace gcmoe::protocol
