// Operators go in any order, after a stall or in the middle of one: nobody hangs, nobody writes
// into memory that is gone (AddressSanitizer watches).
#include <gtest/gtest.h>

#include <algorithm>

#include "op/stall_fixture.hpp"

namespace gcmoe {
namespace {

using test::StallLayer;

const WaitLimits kShort{60.0, 0.2};

class Teardown : public test::BothExecutors {
  protected:
    template <class Prepare>
    void destroy_in_every_order(const Prepare& prepare) {
        std::vector<int> order = {0, 1, 2};
        do {
            StallLayer layer(group(), kShort);
            layer.expect_good_launch(50);
            prepare(&layer);
            const test::Stopwatch watch;
            for (const int rank : order) layer.destroy(rank);
            EXPECT_LT(watch.seconds(), 3.0) << order[0] << order[1] << order[2];
        } while (std::next_permutation(order.begin(), order.end()));
    }
};

TEST_P(Teardown, AfterAStall) {
    destroy_in_every_order([](StallLayer* layer) {
        layer->launch({0, 1});
        for (const int rank : {0, 1}) {
            EXPECT_EQ(layer->op(rank).synchronize().code(), Code::kStalled);
        }
    });
}

TEST_P(Teardown, WhileOthersWaitForTheOneThatGoes) {
    destroy_in_every_order([](StallLayer* layer) { layer->launch({0, 1}, 3); });
}

TEST_P(Teardown, WithWorkInTheQueues) {
    destroy_in_every_order([](StallLayer* layer) { layer->launch({0, 1, 2}, 5); });
}

TEST_P(Teardown, AfterAResetThatMovedTheMemory) {
    destroy_in_every_order([](StallLayer* layer) {
        layer->launch({0, 1});
        for (const int rank : {0, 1}) {
            EXPECT_EQ(layer->op(rank).synchronize().code(), Code::kStalled);
        }
        EXPECT_TRUE(Operator::reset(layer->all(), true).ok());
        layer->expect_good_launch(52);
        layer->launch({1, 2});
    });
}

TEST_P(Teardown, NeverLaunched) {
    destroy_in_every_order([](StallLayer*) {});
}

// A rank goes while a peer still waits for it, and only then the peer's limit runs out.
TEST_P(Teardown, PeerOfARankThatIsGoneGivesUp) {
    StallLayer layer(group(), kShort);
    layer.expect_good_launch(51);
    layer.destroy(2);
    layer.launch({0, 1});
    for (const int rank : {0, 1}) {
        test::expect_refused(layer.op(rank).synchronize(), Code::kStalled, {"rank 2"});
    }
    layer.destroy(0);
    EXPECT_EQ(layer.op(1).synchronize().code(), Code::kStalled);
}

GCMOE_ON_BOTH_EXECUTORS(Teardown);

// Memory of a rank that left stays as long as a peer may write there, and no longer.
TEST(TeardownOnThreads, ManyWorkspacesOneAfterAnother) {
    const Shape shape = test::small_shape(2);
    std::shared_ptr<Group> group;
    ASSERT_TRUE(Group::in_process(2, {}, &group).ok());
    for (int round = 0; round < 50; ++round) {
        std::vector<std::unique_ptr<Operator>> ops(2);
        for (int rank = 0; rank < 2; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            ASSERT_TRUE(Operator::create(shape, test::packed_layer(shape)[at], group, rank,
                                         test::options_for(4), &ops[at])
                            .ok());
        }
        for (auto& op : ops) ASSERT_TRUE(op->launch({}).ok());
    }
}

}  // namespace
}  // namespace gcmoe
