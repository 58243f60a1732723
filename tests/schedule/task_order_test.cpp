// The one total order of role 2's tasks: every task once, nobody waits for a later task.
#include "schedule/task_order.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gcmoe::schedule {
namespace {

TaskOrder order_of(std::uint32_t num_blocks, std::uint32_t n1, std::uint32_t n2,
                   std::uint32_t lead) {
    TaskOrder order;
    order.num_blocks = num_blocks;
    order.n1 = n1;
    order.n2 = n2;
    order.lead = lead;
    return order;
}

// Ticket of every task, found by walking the order; counts what comes twice or never.
struct Tickets {
    std::vector<std::uint64_t> of[4];  // (blocks * tasks) by kind
    int mistakes = 0;

    explicit Tickets(const TaskOrder& order) {
        const std::uint32_t per_block[4] = {order.n1, order.n2, order.shared_n1, order.n2};
        const std::uint32_t blocks[4] = {order.num_blocks, order.num_blocks, order.shared_blocks,
                                         order.shared_blocks};
        for (int kind = 0; kind < 4; ++kind) {
            of[kind].assign(std::size_t{blocks[kind]} * per_block[kind], kNone);
        }
        for (std::uint64_t ticket = 0; ticket < num_tasks(order); ++ticket) {
            const Task task = task_at(order, ticket);
            const auto kind = static_cast<int>(task.kind);
            if (task.block >= blocks[kind] || task.index >= per_block[kind]) {
                ++mistakes;
                continue;
            }
            std::uint64_t& slot = of[kind][task.block * per_block[kind] + task.index];
            if (slot != kNone) ++mistakes;
            slot = ticket;
        }
        for (const auto& tickets : of) {
            for (const std::uint64_t ticket : tickets) mistakes += ticket == kNone ? 1 : 0;
        }
    }
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
};

// Every pair that waits: a second GEMM for the first GEMMs of its block, a first GEMM for the
// second GEMMs of the block that had its ring place before.
int waits_for_later_tasks(const TaskOrder& order, std::uint32_t ring_blocks,
                          const Tickets& tickets) {
    int later = 0;
    for (std::uint32_t b = 0; b < order.num_blocks; ++b) {
        for (std::uint32_t j = 0; j < order.n2; ++j) {
            const std::uint64_t second = tickets.of[1][b * order.n2 + j];
            for (std::uint32_t i = 0; i < order.n1; ++i) {
                later += tickets.of[0][b * order.n1 + i] > second ? 1 : 0;
                const std::uint32_t next = b + ring_blocks;
                if (next >= order.num_blocks) continue;
                later += tickets.of[0][next * order.n1 + i] < second ? 1 : 0;
            }
        }
    }
    for (std::uint32_t b = 0; b < order.shared_blocks; ++b) {
        for (std::uint32_t j = 0; j < order.n2; ++j) {
            for (std::uint32_t i = 0; i < order.shared_n1; ++i) {
                later += tickets.of[2][b * order.shared_n1 + i] > tickets.of[3][b * order.n2 + j];
            }
        }
    }
    return later;
}

TEST(TaskOrder, EveryTaskOnceAndNobodyWaitsForALaterOne) {
    for (const std::uint32_t num_blocks : {0, 1, 2, 3, 7, 16}) {
        for (const std::uint32_t n1 : {1, 2, 5}) {
            for (const std::uint32_t n2 : {1, 3}) {
                for (const std::uint32_t ring_blocks : {1, 2, 4, 16}) {
                    for (std::uint32_t lead = 1; lead <= ring_blocks; ++lead) {
                        for (const std::uint32_t shared : {0, 1, 4}) {
                            TaskOrder order = order_of(num_blocks, n1, n2, lead);
                            order.shared_blocks = shared;
                            order.shared_n1 = shared == 0 ? 0 : 2;
                            const Tickets tickets(order);
                            EXPECT_EQ(tickets.mistakes, 0);
                            EXPECT_EQ(waits_for_later_tasks(order, ring_blocks, tickets), 0);
                            const Status status = check_task_order(order, ring_blocks);
                            EXPECT_TRUE(status.ok()) << status.message();
                        }
                    }
                }
            }
        }
    }
}

TEST(TaskOrder, LeadBlocksRunAhead) {
    const TaskOrder order = order_of(4, 2, 1, 2);
    std::string text;
    for (std::uint64_t ticket = 0; ticket < num_tasks(order); ++ticket) {
        const Task task = task_at(order, ticket);
        text += (task.kind == TaskKind::kFirstGemm ? " f" : " s") + std::to_string(task.block) +
                std::to_string(task.index);
    }
    EXPECT_EQ(text, " f00 f01 f10 f11 s00 f20 f21 s10 f30 f31 s20 s30");
}

TEST(TaskOrder, SharedTasksStandBetweenTheLeadAndTheRest) {
    TaskOrder order = order_of(3, 1, 1, 2);
    order.shared_blocks = 1;
    order.shared_n1 = 2;
    std::string text;
    for (std::uint64_t ticket = 0; ticket < num_tasks(order); ++ticket) {
        const Task task = task_at(order, ticket);
        const char* const names[] = {" f", " s", " F", " S"};
        text += names[static_cast<int>(task.kind)] + std::to_string(task.block) +
                std::to_string(task.index);
    }
    EXPECT_EQ(text, " F00 F01 f00 f10 S00 s00 f20 s10 s20");
}

TEST(TaskOrder, LargestLaunchStaysWithinItsTypes) {
    // 72 ranks of 512 tokens and 64 experts per token all on one rank, blocks of 8, 64 + 64 tasks.
    TaskOrder order = order_of(72 * 512 * 64 / 8, 64, 64, 8);
    order.shared_blocks = 64;
    order.shared_n1 = 64;
    const Task last = task_at(order, num_tasks(order) - 1);
    EXPECT_EQ(last.kind, TaskKind::kSecondGemm);
    EXPECT_EQ(last.block, order.num_blocks - 1);
    EXPECT_EQ(last.index, 63U);
    // Both shared GEMMs and the first GEMMs of the lead stand before it.
    const std::uint64_t before = 64ULL * 64 + 8ULL * 64 + 64ULL * 64;
    const Task shared = task_at(order, before - 1);
    EXPECT_EQ(shared.kind, TaskKind::kSharedSecond);
    EXPECT_EQ(shared.block, 63U);
    EXPECT_EQ(shared.index, 63U);
}

// What is planted: a lead longer than the ring. The check names the pair.
TEST(TaskOrder, ALeadLongerThanTheRingIsRefused) {
    for (const std::uint32_t ring_blocks : {1, 2, 4, 8}) {
        for (std::uint32_t lead = ring_blocks + 1; lead < 12; ++lead) {
            const TaskOrder order = order_of(16, 2, 3, lead);
            EXPECT_GT(waits_for_later_tasks(order, ring_blocks, Tickets(order)), 0);
            const Status status = check_task_order(order, ring_blocks);
            EXPECT_EQ(status.code(), Code::kBadConfig);
            const std::string pair = "first GEMM of block " + std::to_string(ring_blocks) +
                                     " stands before the second GEMM of block 0";
            EXPECT_NE(status.message().find(pair), std::string::npos) << status.message();
        }
    }
}

// With no more blocks than the ring holds, no place is used twice: any lead is right.
TEST(TaskOrder, ALongLeadIsRightWhileNoPlaceIsUsedAgain) {
    for (const std::uint32_t ring_blocks : {1, 2, 4, 8}) {
        const TaskOrder order = order_of(ring_blocks, 2, 3, 3 * ring_blocks);
        EXPECT_EQ(waits_for_later_tasks(order, ring_blocks, Tickets(order)), 0);
        EXPECT_TRUE(check_task_order(order, ring_blocks).ok());
    }
}

}  // namespace
}  // namespace gcmoe::schedule
