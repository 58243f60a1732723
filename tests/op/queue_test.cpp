// Many launches without a wait, from one host thread or from one per rank; what the machine cannot
// give is a refusal.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "checkpoint/generated_layer.hpp"
#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expect_refused;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::plan_with;
using test::Rows;
using test::small_shape;
using test::VirtualLayer;

constexpr int kRanks = 4;
constexpr int kCapacity = 4;
constexpr std::size_t kHidden = 256;

// Ranks of one layer, each with inputs and a y per launch slot.
class Queue : public test::BothExecutors {
  protected:
    Queue() {
        for (int rank = 0; rank < kRanks; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            test::stage_inputs(&layer_.op(rank), IndexType::kInt64, shape_, inputs_[at]);
            y_.emplace_back(kCapacity * kHidden, 0xFFFF);
        }
    }
    // Alternates between the rank's tokens and none; the last one has tokens.
    void launch_many(int rank, int launches) {
        const auto at = static_cast<std::size_t>(rank);
        for (int i = launches - 1; i >= 0; --i) {
            LaunchArgs args;
            args.num_tokens = i % 2 == 0 ? inputs_[at].num_tokens : 0;
            args.y = y_[at].data();
            const Status status = layer_.op(rank).launch(args);
            ASSERT_TRUE(status.ok()) << status.message();
        }
    }
    void expect_result(std::uint32_t generation) {
        const auto expected = expected_bits(shape_, inputs_);
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            EXPECT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), y_[rank].begin()));
            EXPECT_EQ(layer_.op(static_cast<int>(rank)).statistics().generation, generation);
        }
    }
    static OperatorOptions tight() {
        OperatorOptions options = options_for(kCapacity);
        options.plans = {plan_with("tight", 8, 1)};
        return options;
    }

    Shape shape_ = small_shape(kRanks);
    VirtualLayer layer_{shape_, group(), tight()};
    AllInputs inputs_ = inputs_with(shape_, 61, {2, 1, 0, 1}, kCapacity);
    std::vector<Rows> y_;
};

// Rank by rank: the first is thousands of launches ahead in its queue before the last has any.
TEST_P(Queue, ThousandsOfLaunchesWithoutAWait) {
    const int launches = on_threads() ? 3000 : 500;
    for (int rank = 0; rank < kRanks; ++rank) launch_many(rank, launches);
    for (Operator* op : layer_.all()) {
        const Status status = op->synchronize();
        ASSERT_TRUE(status.ok()) << status.message();
    }
    expect_result(static_cast<std::uint32_t>(launches));
}

TEST_P(Queue, SynchronizeInAnyOrderAndTwice) {
    for (int rank = kRanks - 1; rank >= 0; --rank) launch_many(rank, 11);
    for (const int rank : {2, 0, 2, 3, 1, 0}) {
        EXPECT_TRUE(layer_.op(rank).synchronize().ok()) << rank;
    }
    expect_result(11);
}

GCMOE_ON_BOTH_EXECUTORS(Queue);

class QueueOnThreads : public Queue {};
TEST_P(QueueOnThreads, OneHostThreadPerRank) {
    constexpr int kRounds = 40;
    std::vector<std::thread> hosts;
    std::vector<int> bad(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
        hosts.emplace_back([this, rank, &bad] {
            for (int round = 0; round < kRounds; ++round) {
                launch_many(rank, 1 + round % 3 * 2);
                if (!layer_.op(rank).synchronize().ok()) ++bad[static_cast<std::size_t>(rank)];
            }
        });
    }
    for (std::thread& host : hosts) host.join();
    EXPECT_EQ(bad, std::vector<int>(kRanks));
    std::uint32_t generation = 0;
    for (int round = 0; round < kRounds; ++round) generation += 1U + round % 3 * 2;
    expect_result(generation);
}
INSTANTIATE_TEST_SUITE_P(, QueueOnThreads, testing::Values(ExecutorKind::kThreads),
                         test::executor_name);

// Ranks created, run and destroyed by their own host threads.
TEST(QueueOfHosts, WholeLifeOnOneThreadPerRank) {
    const Shape shape = small_shape(kRanks, 128);
    const AllInputs inputs = inputs_with(shape, 62, {4, 3, 0, 1}, kCapacity);
    test::packed_layer(shape);
    std::shared_ptr<Group> group;
    ASSERT_TRUE(Group::in_process(kRanks, {}, &group).ok());
    std::vector<Rows> y(kRanks, Rows(kCapacity * kHidden, 0xFFFF));
    std::vector<std::string> wrong(kRanks);
    std::vector<std::thread> hosts;
    for (int rank = 0; rank < kRanks; ++rank) {
        hosts.emplace_back([&, rank] {
            const auto at = static_cast<std::size_t>(rank);
            std::unique_ptr<Operator> op;
            Status status = Operator::create(shape, test::packed_layer(shape)[at], group, rank,
                                             options_for(kCapacity), &op);
            if (status.ok()) {
                test::stage_inputs(op.get(), IndexType::kInt64, shape, inputs[at]);
                LaunchArgs args;
                args.num_tokens = inputs[at].num_tokens;
                args.y = y[at].data();
                do {  // until every rank has joined
                    status = op->launch(args);
                    std::this_thread::yield();
                } while (status.message().find("has not created") != std::string::npos);
                if (status.ok()) status = op->synchronize();
            }
            wrong[at] = status.message();
        });
    }
    for (std::thread& host : hosts) host.join();
    EXPECT_EQ(wrong, std::vector<std::string>(kRanks));
    const auto expected = expected_bits(shape, inputs);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), y[rank].begin()));
    }
}

}  // namespace
}  // namespace gcmoe
