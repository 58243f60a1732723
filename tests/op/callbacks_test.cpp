// LaunchArgs::before and after: on the rank's stream, in order, and harmless whatever they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <stdexcept>

#include "op/op_fixture.hpp"

namespace gcmoe {
namespace {

using test::AllInputs;
using test::expect_refused;
using test::expected_bits;
using test::inputs_with;
using test::options_for;
using test::Rows;
using test::small_shape;
using test::VirtualLayer;

constexpr int kCapacity = 6;
constexpr std::size_t kHidden = 256;

class Callbacks : public test::BothExecutors {
  protected:
    Shape shape_ = small_shape(2);
    VirtualLayer layer_{shape_, group(), options_for(kCapacity)};
    AllInputs inputs_ = inputs_with(shape_, 81, {4, 5}, kCapacity);
    std::vector<Rows> y_ = std::vector<Rows>(2, Rows(kCapacity* kHidden, 0xFFFF));

    LaunchArgs args(int rank) {
        LaunchArgs args;
        args.num_tokens = inputs_[static_cast<std::size_t>(rank)].num_tokens;
        args.y = y_[static_cast<std::size_t>(rank)].data();
        return args;
    }
    void stage() {
        for (int rank = 0; rank < 2; ++rank) {
            test::stage_inputs(&layer_.op(rank), IndexType::kInt64, shape_,
                               inputs_[static_cast<std::size_t>(rank)]);
        }
    }
    // Rank 1 launches plainly, rank 0 with this `before`; rank 0's status.
    Status run_with(const std::function<int()>& before) {
        stage();
        LaunchArgs first = args(0);
        first.before = before;
        EXPECT_TRUE(layer_.op(0).launch(first).ok());
        EXPECT_TRUE(layer_.op(1).launch(args(1)).ok());
        Status status = layer_.op(0).synchronize();
        EXPECT_TRUE(layer_.op(1).synchronize().ok());
        return status;
    }
    [[nodiscard]] Rows rows(std::size_t rank, int tokens) const {
        return {y_[rank].begin(), y_[rank].begin() + static_cast<std::ptrdiff_t>(kHidden) * tokens};
    }
};

TEST_P(Callbacks, RunInStreamOrder) {
    stage();
    std::vector<int> calls;
    for (int launch = 0; launch < 20; ++launch) {
        LaunchArgs one = args(0);
        one.before = [&calls, launch] {
            calls.push_back(2 * launch);
            return 4;
        };
        one.after = [&calls, launch] { calls.push_back(2 * launch + 1); };
        ASSERT_TRUE(layer_.op(0).launch(one).ok());
        ASSERT_TRUE(layer_.op(1).launch(args(1)).ok());
    }
    for (Operator* op : layer_.all()) ASSERT_TRUE(op->synchronize().ok());
    ASSERT_EQ(calls.size(), 40U);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)], i);
}

TEST_P(Callbacks, BeforeFillsInputsAndAfterSeesY) {
    const auto expected = expected_bits(shape_, inputs_);
    stage();
    Rows seen;
    LaunchArgs first = args(0);
    first.num_tokens = 0;
    first.before = [this] {
        test::stage_inputs(&layer_.op(0), IndexType::kInt64, shape_, inputs_[0]);
        return 4;
    };
    first.after = [&] { seen = rows(0, 4); };
    ASSERT_TRUE(layer_.op(0).launch(first).ok());
    ASSERT_TRUE(layer_.op(1).launch(args(1)).ok());
    for (Operator* op : layer_.all()) ASSERT_TRUE(op->synchronize().ok());
    EXPECT_EQ(seen, expected[0]);
    EXPECT_EQ(rows(1, 5), expected[1]);
}

TEST_P(Callbacks, BeforeChangesTheNumberOfTokens) {
    for (const int tokens : {0, 1, 4}) {
        std::fill(y_[0].begin(), y_[0].end(), std::uint16_t{0xFFFF});
        EXPECT_TRUE(run_with([tokens] { return tokens; }).ok());
        AllInputs fewer = inputs_;
        fewer[0].num_tokens = tokens;
        EXPECT_EQ(rows(0, tokens), expected_bits(shape_, fewer)[0]);
        EXPECT_EQ(y_[0][kHidden * static_cast<std::size_t>(tokens)], 0xFFFF) << "wrote too much";
    }
}

// Not clamped: the launch runs with 0 tokens, so that the peers go on, and the error is told.
TEST_P(Callbacks, TokensOutsideTheCapacityAreAnError) {
    const auto expected = expected_bits(shape_, inputs_);
    constexpr int kMost = std::numeric_limits<int>::max();
    for (const int tokens : {kCapacity + 1, -1, kMost, std::numeric_limits<int>::min()}) {
        std::fill(y_[0].begin(), y_[0].end(), std::uint16_t{0xFFFF});
        expect_refused(
            run_with([tokens] { return tokens; }), Code::kBadInput,
            {"before()", "num_tokens = " + std::to_string(tokens), "0..6", "ran with 0 tokens"});
        EXPECT_EQ(y_[0], Rows(kCapacity * kHidden, 0xFFFF)) << "y is not touched";
        EXPECT_EQ(rows(1, 5), expected[1]) << "the peer has its result";
        EXPECT_TRUE(run_with([] { return 4; }).ok()) << "told once, and the workspace goes on";
        EXPECT_EQ(rows(0, 4), expected[0]);
    }
}

TEST_P(Callbacks, BadLaunchIsNumberedAmongQueuedOnes) {
    stage();
    for (int launch = 1; launch <= 5; ++launch) {
        LaunchArgs one = args(0);
        one.before = [launch] { return launch >= 3 ? 100 + launch : 4; };
        ASSERT_TRUE(layer_.op(0).launch(one).ok());
        ASSERT_TRUE(layer_.op(1).launch(args(1)).ok());
    }
    expect_refused(layer_.op(0).synchronize(), Code::kBadInput, {"launch 3", "num_tokens = 103"});
    EXPECT_TRUE(layer_.op(0).synchronize().ok());
    EXPECT_TRUE(layer_.op(1).synchronize().ok());
    EXPECT_EQ(layer_.op(0).statistics().generation, 5U);
}

TEST_P(Callbacks, ExceptionsAreCaught) {
    expect_refused(run_with([]() -> int { throw std::runtime_error("no batch"); }), Code::kBadInput,
                   {"before() of launch 1", "'no batch'", "0 tokens"});
    expect_refused(run_with([]() -> int { throw 7; }), Code::kBadInput, {"before() of launch 2"});
    LaunchArgs first = args(0);
    first.after = [] { throw std::runtime_error("no reader"); };
    ASSERT_TRUE(layer_.op(0).launch(first).ok());
    ASSERT_TRUE(layer_.op(1).launch(args(1)).ok());
    expect_refused(layer_.op(0).synchronize(), Code::kBadInput,
                   {"after() of launch 3", "'no reader'"});
    EXPECT_TRUE(layer_.op(1).synchronize().ok());
    EXPECT_TRUE(run_with([] { return 4; }).ok());
}

GCMOE_ON_BOTH_EXECUTORS(Callbacks);

// launch() queues and returns, whatever `before` waits for.
TEST(CallbacksOnThreads, LaunchDoesNotWaitForBefore) {
    const Shape shape = small_shape(2);
    VirtualLayer layer(shape, {}, options_for(kCapacity));
    const AllInputs inputs = inputs_with(shape, 82, {3, 2}, kCapacity);
    std::vector<Rows> y(2, Rows(kCapacity * kHidden));
    std::promise<void> all_launched;
    std::shared_future<void> launched = all_launched.get_future().share();
    std::atomic<bool> in_time{true};
    for (int rank = 0; rank < 2; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        LaunchArgs args;
        args.y = y[at].data();
        args.before = [&, rank, at] {
            if (launched.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
                in_time = false;
            }
            test::stage_inputs(&layer.op(rank), IndexType::kInt64, shape, inputs[at]);
            return inputs[at].num_tokens;
        };
        ASSERT_TRUE(layer.op(rank).launch(args).ok());
    }
    all_launched.set_value();
    for (Operator* op : layer.all()) ASSERT_TRUE(op->synchronize().ok());
    EXPECT_TRUE(in_time) << "launch() ran before() on the caller's thread";
    const auto expected = expected_bits(shape, inputs);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), y[rank].begin()));
    }
}

}  // namespace
}  // namespace gcmoe
