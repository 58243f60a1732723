// Ten thousand generations without a barrier between them, with random delays at every signal
// access, token counts that change each time, poison in every unused place, from a fresh start and
// from starts at which some counter is about to wrap.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "cpu/roles.hpp"
#include "delay_memory.hpp"
#include "group/group_state.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kGenerations = 300;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr int kGenerations = 300;
#else
constexpr int kGenerations = 10000;
#endif
#else
constexpr int kGenerations = 10000;
#endif

constexpr int kRanks = 3;
constexpr int kCapacity = 256;
constexpr int kRingBlocks = 4;
constexpr int kSets = 24;

Shape soak_shape() {
    Shape shape;
    shape.hidden = 128;
    shape.inter = 256;  // two mask bits
    shape.num_experts = 12;
    shape.topk = 2;
    shape.num_ranks = kRanks;
    shape.shared_inter = 128;
    shape.activation.clamp = 10.0F;
    return shape;
}

// Tokens of a rank in a set. Sets 0..3 are the classic walk 256 -> 1 -> 0 -> 256; the others are
// small.
int tokens_of(int set, int rank) {
    constexpr int kWalk[4] = {256, 1, 0, 256};
    if (set < 4) return kWalk[(set + (set == 3 ? rank : 0)) % 4];
    return static_cast<int>(
        numerics::hash_combine(static_cast<std::uint64_t>(set), static_cast<std::uint64_t>(rank)) %
        6);
}

// Which set a generation draws: the walk once in a while, else a small one.
int set_of(int launch) {
    if (launch % 64 < 4) return launch % 64;
    return 4 +
           static_cast<int>(numerics::splitmix64(static_cast<std::uint64_t>(launch)) % (kSets - 4));
}

struct Pool {
    std::vector<std::vector<reference::RankInputs>> inputs;         // [set][rank]
    std::vector<std::vector<std::vector<std::uint16_t>>> expected;  // [set][rank]
};

// Expected bits: the same tokens on one rank with the product's policy and another plan.
const Pool& pool() {
    static const Pool made = [] {
        Pool pool;
        Shape one = soak_shape();
        one.num_ranks = 1;
        OperatorOptions options;
        options.max_tokens = kCapacity;
        options.plans.resize(1);
        options.plans[0].row_block = 32;
        test::VirtualLayer layer(one, {}, options);
        for (int set = 0; set < kSets; ++set) {
            pool.inputs.emplace_back();
            pool.expected.emplace_back();
            for (int rank = 0; rank < kRanks; ++rank) {
                pool.inputs.back().push_back(
                    test::stream_inputs(one, static_cast<std::uint64_t>(set), 1000 * rank,
                                        tokens_of(set, rank), kCapacity, 0.2));
                pool.expected.back().push_back(layer.run({pool.inputs.back().back()}).front());
            }
        }
        return pool;
    }();
    return made;
}

// Runs all generations from a start; every output is compared.
void soak(const StartState& start, IndexType index_type) {
    GroupOptions group_options;
    std::shared_ptr<Group> group;
    ASSERT_TRUE(Group::in_process(kRanks, group_options, &group).ok());
    group->state().executor =
        std::make_shared<cpu::ThreadRoles>(cpu::roles_with<test::DelayMemory>());
    const Shape shape = soak_shape();
    OperatorOptions options;
    options.max_tokens = kCapacity;
    options.index_type = index_type;
    options.poison = true;
    options.start = start;
    options.wait_limits = {60.0, 60.0};
    options.plans.resize(1);
    options.plans[0].row_block = 8;
    options.plans[0].ring_blocks = kRingBlocks;
    options.plans[0].partition = {2, 2};
    std::vector<std::unique_ptr<Operator>> ops(kRanks);
    std::vector<std::vector<std::uint16_t>> y(kRanks);
    std::atomic<int> wrong{0};
    std::atomic<int> compared{0};
    for (int r = 0; r < kRanks; ++r) {
        const auto at = static_cast<std::size_t>(r);
        ASSERT_TRUE(
            Operator::create(shape, test::packed_layer(shape)[at], group, r, options, &ops[at])
                .ok());
        y[at].resize(static_cast<std::size_t>(kCapacity) * 128);
    }
    for (int launch = 0; launch < kGenerations; ++launch) {
        const auto set = static_cast<std::size_t>(set_of(launch));
        for (std::size_t r = 0; r < kRanks; ++r) {
            LaunchArgs args;
            args.y = y[r].data();
            args.before = [&, r, set] {
                std::fill(y[r].begin(), y[r].end(), std::uint16_t{0xFFFF});
                test::stage_inputs(ops[r].get(), index_type, shape, pool().inputs[set][r]);
                return pool().inputs[set][r].num_tokens;
            };
            args.after = [&, r, set] {
                const auto& expected = pool().expected[set][r];
                if (!std::equal(expected.begin(), expected.end(), y[r].begin())) ++wrong;
                ++compared;
            };
            ASSERT_TRUE(ops[r]->launch(args).ok());
        }
    }
    for (auto& op : ops) {
        const Status status = op->synchronize();
        ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(compared.load(), kGenerations * kRanks);
    const std::uint32_t generation = ops[0]->statistics().generation;
    EXPECT_EQ(generation, start.generation + static_cast<std::uint32_t>(kGenerations));
    EXPECT_GT(ops[0]->statistics().laps, 100U);
}

TEST(Soak, FreshStart) { soak({}, IndexType::kInt64); }

TEST(Soak, LapWraps) {
    StartState start;
    start.s0 = (std::uint64_t{1} << 32) * kRingBlocks - 3 * kRingBlocks;
    soak(start, IndexType::kInt32);
}

TEST(Soak, SequencePasses32Bits) {
    StartState start;
    start.s0 = (std::uint64_t{1} << 32) - 3;
    soak(start, IndexType::kInt64);
}

TEST(Soak, GenerationWraps) {
    StartState start;
    start.generation = ~std::uint32_t{0} - 1;
    start.session = 255;  // the 8 session bits of count words are full, too
    soak(start, IndexType::kInt64);
}

TEST(Soak, RowsLeftAndTicketWrap) {
    StartState start;
    start.rows_left = ~std::uint32_t{0} - 5;
    start.ticket = ~std::uint64_t{0} - 5;
    soak(start, IndexType::kInt64);
}

}  // namespace
}  // namespace gcmoe
