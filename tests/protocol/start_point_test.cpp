// What init sets for a start point is what a running system has reached there: run many launches,
// set fresh memory for that point, compare every signal word.
#include <gtest/gtest.h>

#include <cstring>

#include "op/operator_state.hpp"
#include "protocol/session.hpp"
#include "protocol/words.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

using layout::RankMemory;
using protocol::laps_before;
using protocol::StartPoint;
using test::VirtualLayer;

constexpr std::uint64_t kTwo32 = std::uint64_t{1} << 32;

TEST(StartPoint, LapsBefore) {
    for (const std::uint64_t ring_blocks : {1, 2, 8}) {
        std::vector<std::uint64_t> laps(ring_blocks);
        for (std::uint64_t s = 0; s < 40; ++s) {
            for (std::uint64_t place = 0; place < ring_blocks; ++place) {
                EXPECT_EQ(laps_before(s, place, ring_blocks), laps[place]) << s << " " << place;
            }
            ++laps[s % ring_blocks];
        }
    }
    EXPECT_EQ(laps_before(kTwo32 * 4 - 12, 0, 4), kTwo32 - 3);
    EXPECT_EQ(laps_before(kTwo32 * 4 - 11, 0, 4), kTwo32 - 2);
    EXPECT_EQ(laps_before(kTwo32 * 4 - 11, 1, 4), kTwo32 - 3);
}

// A rank's heap and local memory, set as if a workspace started at `start`.
class Fresh {
  public:
    Fresh(const RankMemory& like, const StartPoint& start)
        : heap_(like.heap.bytes), local_(like.local.bytes), memory_(like) {
        memory_.peers.base = reinterpret_cast<std::uint64_t>(heap_.data());
        memory_.local_base = local_.data();
        protocol::init_workspace_signals(memory_, start);
        protocol::init_plan_signals(memory_, start);
    }
    [[nodiscard]] const RankMemory& memory() const { return memory_; }

  private:
    std::vector<std::uint8_t> heap_;
    std::vector<std::uint8_t> local_;
    RankMemory memory_;
};

// Counts differ (init writes zero), tags do not.
constexpr std::uint64_t kTag = ~std::uint64_t{protocol::kMaxCount};

void expect_same_plan_words(const RankMemory& run, const RankMemory& set) {
    for (std::uint32_t place = 0; place < run.plan.ring_blocks; ++place) {
        EXPECT_EQ(*run.l1_full_count(place), *set.l1_full_count(place)) << "place " << place;
        EXPECT_EQ(*run.l1_empty_count(place), *set.l1_empty_count(place)) << "place " << place;
        EXPECT_EQ(*run.l2_full_mask(place), *set.l2_full_mask(place)) << "place " << place;
        EXPECT_EQ(*run.l2_empty_count(place), *set.l2_empty_count(place)) << "place " << place;
    }
    EXPECT_EQ(run.words()->s0, set.words()->s0);
    EXPECT_EQ(run.words()->ticket, set.words()->ticket);
    EXPECT_EQ(run.words()->ticket_base, set.words()->ticket_base);
}

void expect_same_words(const RankMemory& run, const RankMemory& set) {
    for (std::uint32_t source = 0; source < run.heap.num_ranks; ++source) {
        for (std::uint32_t half = 0; half < 2; ++half) {
            for (std::uint32_t expert = 0; expert < run.heap.experts_per_rank; ++expert) {
                const auto word = [&](const RankMemory& memory) {
                    return *memory.heap.recv_count_word(memory.own_heap(), half, source, expert);
                };
                EXPECT_EQ(word(run) & kTag, word(set) & kTag);
            }
        }
        EXPECT_EQ(*run.heap.done_word(run.own_heap(), source),
                  *set.heap.done_word(set.own_heap(), source));
        EXPECT_EQ(*run.heap.fault_word(run.own_heap(), source), 0U);
        EXPECT_EQ(run.rows_left()[source], run.rows_left_target()[source]);
    }
    EXPECT_EQ(protocol::generation_of(*run.num_blocks()),
              protocol::generation_of(*set.num_blocks()));
    for (std::uint32_t i = 0; i < run.local.shared_blocks; ++i) {
        EXPECT_EQ(*run.shared_ready(i), *set.shared_ready(i)) << "row block " << i;
    }
    EXPECT_EQ(run.state()->generation, set.state()->generation);
    EXPECT_EQ(run.state()->session, set.state()->session);
    EXPECT_EQ(run.state()->stall_claimed, 0U);
}

// Launches with changing tokens from `start`, on the product's threads.
void run_and_compare(const StartState& start, int ring_blocks, int num_launches) {
    Shape shape = test::small_shape(2, 256);
    shape.hidden = 128;
    shape.num_experts = 4;
    shape.topk = 2;
    OperatorOptions options;
    options.max_tokens = 20;
    options.start = start;
    options.wait_limits = {60.0, 60.0};
    PlanOptions plan;
    plan.row_block = 8;
    plan.ring_blocks = ring_blocks;
    plan.partition = {2, 3};
    options.plans = {plan};
    VirtualLayer layer(shape, {}, options);
    for (int launch = 0; launch < num_launches; ++launch) {
        const auto seed = static_cast<std::uint64_t>(launch);
        layer.run(test::spread_inputs(shape, seed, (launch * 7) % 40, options.max_tokens, 0.1));
    }
    for (Operator* op : layer.all()) {
        const RankMemory run = op->state().backend->memory(0);
        EXPECT_EQ(run.words()->launches, static_cast<std::uint64_t>(num_launches));
        EXPECT_EQ(run.state()->generation, start.generation + static_cast<unsigned>(num_launches));
        EXPECT_GE(run.words()->s0, start.s0 + 2 * static_cast<std::uint64_t>(ring_blocks));
        const StartPoint reached{run.state()->generation, run.state()->session, run.words()->s0, 0,
                                 run.words()->ticket};
        const Fresh fresh(run, reached);
        expect_same_plan_words(run, fresh.memory());
        expect_same_words(run, fresh.memory());
    }
}

TEST(StartPoint, ReachedFromZero) {
    for (const int ring_blocks : {1, 2, 8}) run_and_compare({}, ring_blocks, 12);
}

TEST(StartPoint, ReachedAcrossTheWrapOfLaps) {
    for (const int ring_blocks : {1, 2, 8}) {
        StartState start;
        start.s0 = (kTwo32 - 3) * static_cast<std::uint64_t>(ring_blocks);
        run_and_compare(start, ring_blocks, 12);
    }
}

TEST(StartPoint, ReachedAcrossTheWrapOfGenerationSequenceRowsAndTickets) {
    for (const int ring_blocks : {1, 2, 8}) {
        StartState start;
        start.generation = 0xFFFFFFFEU;
        start.session = 0x1FF;
        start.s0 = kTwo32 - 3;
        start.rows_left = 0xFFFFFFF0U;
        start.ticket = ~std::uint64_t{0} - 30;
        run_and_compare(start, ring_blocks, 12);
    }
}

// Rank 1 never comes; afterwards all ranks start again under the next session, in the same or in
// new memory.
TEST(StartPoint, ReachedByReset) {
    const Shape shape = test::small_shape(2, 128);
    OperatorOptions options;
    options.max_tokens = 8;
    options.wait_limits = {0.2, 0.2};
    const auto inputs = test::spread_inputs(shape, 1, 13, options.max_tokens);
    GroupOptions group;
    group.executor = ExecutorKind::kStepper;
    VirtualLayer layer(shape, group, options);
    const auto expected = layer.run(inputs);
    std::vector<std::uint16_t> y(8 * 256);
    for (const bool move : {false, true}) {
        LaunchArgs args;
        args.num_tokens = 3;
        args.y = y.data();
        ASSERT_TRUE(layer.op(0).launch(args).ok());
        EXPECT_EQ(layer.op(0).synchronize().code(), Code::kStalled);
        EXPECT_EQ(layer.op(0).launch(args).code(), Code::kBusy);
        ASSERT_TRUE(Operator::reset(layer.all(), move).ok());
        for (Operator* op : layer.all()) {
            const RankMemory run = op->state().backend->memory(0);
            EXPECT_EQ(op->stall_report().cause, StallCause::kNone);
            const Fresh fresh(run, {run.state()->generation, run.state()->session, 0, 0, 0});
            expect_same_plan_words(run, fresh.memory());
            expect_same_words(run, fresh.memory());
        }
        EXPECT_EQ(layer.run(inputs), expected) << "move " << move;
    }
    EXPECT_EQ(layer.op(0).statistics().session, 3U);
}

}  // namespace
}  // namespace gcmoe
