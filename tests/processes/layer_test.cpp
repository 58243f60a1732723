// A layer over processes gives the bits of a layer over threads, and leaves nothing behind.
#include <gtest/gtest.h>

#include <thread>

#include "process_layer.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using namespace test;

class Layer : public testing::TestWithParam<int> {};

TEST_P(Layer, BitsOfThreads) {
    const Shape shape = process_shape(GetParam());
    pack_before_fork(shape);
    const ScratchPath session;
    const Holdings before = Holdings::now();
    std::vector<Outcome> outcomes;
    {
        std::vector<RankProcess> ranks;
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
            ranks.emplace_back([&](Outcome* out) {
                RankSide side(shape, rank, session.path());
                Status status = side.run(1, out);
                for (std::uint64_t seed = 2; seed <= 6 && status.ok(); ++seed) {
                    status = side.launch(seed);
                    if (status.ok()) status = side.finish(out);
                }
                side.leave();
            });
        }
        for (RankProcess& rank : ranks) outcomes.push_back(rank.wait());
    }
    EXPECT_EQ(Holdings::now().beyond(before), "");
    EXPECT_FALSE(session.exists()) << session.path();
    const auto expected = bits_on_threads(shape, 6);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
        EXPECT_TRUE(outcomes[rank].ended);
        EXPECT_EQ(outcomes[rank].code, Code::kOk) << outcomes[rank].message;
        EXPECT_EQ(outcomes[rank].leaks, "");
        EXPECT_EQ(outcomes[rank].y, expected[rank]) << "rank " << rank;
    }
}

INSTANTIATE_TEST_SUITE_P(Processes, Layer, testing::Values(1, 2, 3, 8));

// The peer descriptor's last slot: every rank of the widest group, each with its own group, as
// threads of one process. All hand-overs are those of processes.
TEST(WidestGroup, SeventyTwoRanksByDescriptors) {
    constexpr int kRanks = 72;
    Shape shape = process_shape(kRanks);
    shape.hidden = 128;
    shape.inter = 128;
    pack_before_fork(shape);
    const ScratchPath session;
    const Holdings before = Holdings::now();
    std::vector<Outcome> outcomes(kRanks);
    {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < kRanks; ++rank) {
            threads.emplace_back([&, rank] {
                Outcome* out = &outcomes[static_cast<std::size_t>(rank)];
                RankSide side(shape, rank, session.path());
                side.meet_s = 60;
                side.options.plans.front().partition = {1, 1};
                if (side.run(3, out).ok() && side.launch(4).ok()) (void)side.finish(out);
                side.leave();
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    EXPECT_EQ(Holdings::now().beyond(before), "");
    EXPECT_FALSE(session.exists());
    const auto expected = bits_on_threads(shape, 4);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(outcomes[rank].code, Code::kOk) << outcomes[rank].message;
        EXPECT_EQ(outcomes[rank].y, expected[rank]) << "rank " << rank;
    }
}

}  // namespace
}  // namespace gcmoe
