// Generations without a barrier between them, with random delays at every signal access, token
// counts and masks that change each time, idle ranks, poison in every unused place, from a fresh
// start and from starts at which some counter is about to wrap. Every output is compared.
// It fails within 14,000 generations if R9, R12, R15, R19, R23 or R30 is removed (tried by hand).
//
// GCMOE_SOAK_GENERATIONS: how many, over all starts together. GCMOE_SOAK_SEED: draws tokens, masks
// and their order. `./dev soak cpu` sets both; the last line of a run says what it did.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>

#include "base/math.hpp"
#include "cpu/roles.hpp"
#include "delay_memory.hpp"
#include "group/group_state.hpp"
#include "support/virtual_layer.hpp"

namespace gcmoe {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kGenerations = 2100;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr std::uint64_t kGenerations = 2100;
#else
constexpr std::uint64_t kGenerations = 50000;
#endif
#else
constexpr std::uint64_t kGenerations = 50000;
#endif

constexpr int kRanks = 3;
constexpr int kCapacity = 256;
constexpr int kSets = 24;
constexpr int kQueued = 10000;  // launches before the host waits once: the queue has no cap

std::uint64_t setting(const char* name, std::uint64_t fallback, std::uint64_t most) {
    const char* text = std::getenv(name);
    if (text == nullptr) return fallback;
    const std::string value = text;
    std::uint64_t number = 0;
    const char* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && at == end && number >= 1 && number <= most) return number;
    throw std::runtime_error(fmt::format("{} = '{}' must be in 1..{}", name, value, most));
}

std::uint64_t generations_in_all() {
    return setting("GCMOE_SOAK_GENERATIONS", kGenerations, 999'999'999);
}
std::uint64_t seed() { return setting("GCMOE_SOAK_SEED", 1, 999'999'999); }

std::uint64_t draw(std::uint64_t what, std::uint64_t which) {
    return numerics::hash_combine(numerics::hash_combine(seed(), what), which);
}

Shape soak_shape() {
    Shape shape;
    shape.hidden = 128;
    shape.inter = 256;  // two mask bits
    shape.num_experts = 18;
    shape.topk = 3;
    shape.num_ranks = kRanks;
    shape.shared_inter = 128;
    shape.activation.clamp = 10.0F;
    return shape;
}

// Tokens of a rank in a set. Sets 0..3 are the classic walk 256 -> 1 -> 0 -> 256; in the others a
// rank in four is idle and the rest have a few.
int tokens_of(std::uint64_t set, int rank) {
    constexpr int kWalk[4] = {256, 1, 0, 256};
    if (set < 4) return kWalk[(set + (set == 3 ? static_cast<std::size_t>(rank) : 0)) % 4];
    const std::uint64_t drawn = draw(set, static_cast<std::uint64_t>(rank));
    return drawn % 4 == 0 ? 0 : static_cast<int>(1 + drawn / 4 % 10);
}

// The share of slots that are unused, up to all.
double mask_of(std::uint64_t set) {
    constexpr double kMasks[5] = {0.2, 0.0, 0.2, 0.6, 1.0};
    return kMasks[set < 4 ? 0 : draw(set, kRanks) % 5];
}

// Which set a generation draws: the walk once in a while, else a small one.
std::uint64_t set_of(std::uint64_t launch) {
    if (launch % 64 < 4) return launch % 64;
    return 4 + draw(kSets, launch) % (kSets - 4);
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
        for (std::uint64_t set = 0; set < kSets; ++set) {
            pool.inputs.emplace_back();
            pool.expected.emplace_back();
            for (int rank = 0; rank < kRanks; ++rank) {
                pool.inputs.back().push_back(test::stream_inputs(one, draw(set, kRanks + 1),
                                                                 1000 * rank, tokens_of(set, rank),
                                                                 kCapacity, mask_of(set)));
                pool.expected.back().push_back(layer.run({pool.inputs.back().back()}).front());
            }
        }
        return pool;
    }();
    return made;
}

struct SoakCase {
    std::string name;
    int ring_blocks = 1;
    IndexType index_type = IndexType::kInt64;
    StartState start;
};

void PrintTo(const SoakCase& soak_case, std::ostream* out) { *out << soak_case.name; }

std::vector<SoakCase> soak_cases() {
    std::vector<SoakCase> cases(7);
    cases[0] = {"FreshStart", 4, IndexType::kInt64, {}};
    cases[1] = {"LapWraps", 1, IndexType::kInt32, {}};
    cases[1].start.s0 = (std::uint64_t{1} << 32) - 3;
    cases[2] = {"LapWrapsInARingOfTwo", 2, IndexType::kInt64, {}};
    cases[2].start.s0 = (std::uint64_t{1} << 33) - 6;
    cases[3] = {"SequencePasses32Bits", 2, IndexType::kInt64, {}};
    cases[3].start.s0 = (std::uint64_t{1} << 32) - 3;
    cases[4] = {"GenerationWraps", 1, IndexType::kInt64, {}};
    cases[4].start.generation = ~std::uint32_t{0} - 1;
    cases[4].start.session = 255;  // the 8 session bits of count words are full, too
    cases[5] = {"GenerationChangesSign", 1, IndexType::kInt32, {}};
    cases[5].start.generation = (std::uint32_t{1} << 31) - 2;
    cases[6] = {"RowsLeftAndTicketWrap", 1, IndexType::kInt64, {}};
    cases[6].start.rows_left = ~std::uint32_t{0} - 5;
    cases[6].start.ticket = ~std::uint64_t{0} - 5;
    return cases;
}

// What all starts of this process did together.
struct Totals {
    std::uint64_t starts = 0, generations = 0, laps = 0, compared = 0, wrong = 0;
    double seconds = 0;
};

class Soak : public testing::TestWithParam<SoakCase> {
  public:
    static void TearDownTestSuite() {
        fmt::print(
            "soak: {} generations, {} ring laps ({} ranks' rings together), {} starts, {} outputs "
            "compared, {} wrong, {:.0f} s, seed {}\n",
            totals_.generations, totals_.laps, kRanks, totals_.starts, totals_.compared,
            totals_.wrong, totals_.seconds, seed());
    }

  protected:
    void make_operators() {
        std::shared_ptr<Group> group;
        ASSERT_TRUE(Group::in_process(kRanks, {}, &group).ok());
        group->state().executor =
            std::make_shared<cpu::ThreadRoles>(cpu::roles_with<test::DelayMemory>());
        OperatorOptions options;
        options.max_tokens = kCapacity;
        options.index_type = GetParam().index_type;
        options.poison = true;
        options.start = GetParam().start;
        options.wait_limits = {60.0, 60.0};
        options.plans.resize(1);
        options.plans[0].row_block = 8;
        options.plans[0].ring_blocks = GetParam().ring_blocks;
        options.plans[0].partition = {2, 2};
        const auto& weights = test::packed_layer(shape_);
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            const Status status = Operator::create(shape_, weights[rank], group,
                                                   static_cast<int>(rank), options, &ops_[rank]);
            ASSERT_TRUE(status.ok()) << status.message();
            y_[rank].resize(static_cast<std::size_t>(kCapacity * shape_.hidden));
        }
    }
    void launch(std::size_t rank, std::uint64_t set) {
        LaunchArgs args;
        args.y = y_[rank].data();
        args.before = [this, rank, set] {
            std::fill(y_[rank].begin(), y_[rank].end(), kUntouched);
            const auto& inputs = pool().inputs[set][rank];
            test::stage_inputs(ops_[rank].get(), GetParam().index_type, shape_, inputs);
            return inputs.num_tokens;
        };
        args.after = [this, rank, set] {
            const auto& expected = pool().expected[set][rank];
            const auto end = std::mismatch(expected.begin(), expected.end(), y_[rank].begin());
            const bool right = end.first == expected.end() &&
                               std::all_of(end.second, y_[rank].end(),
                                           [](std::uint16_t bits) { return bits == kUntouched; });
            if (!right) ++wrong_;
            ++compared_;
        };
        ASSERT_TRUE(ops_[rank]->launch(args).ok());
    }
    void synchronize() {
        for (auto& op : ops_) {
            const Status status = op->synchronize();
            ASSERT_TRUE(status.ok()) << status.message();
        }
    }
    [[nodiscard]] std::uint64_t laps() const {
        std::uint64_t sum = 0;
        for (const auto& op : ops_) sum += op->statistics().laps;
        return sum;
    }

    static constexpr std::uint16_t kUntouched = 0xFFFF;
    static inline Totals totals_;
    Shape shape_ = soak_shape();
    std::vector<std::vector<std::uint16_t>> y_{kRanks};
    std::atomic<std::uint64_t> wrong_{0};
    std::atomic<std::uint64_t> compared_{0};
    std::vector<std::unique_ptr<Operator>> ops_{kRanks};  // before what their callbacks use
};

TEST_P(Soak, EveryOutputIsRight) {
    const std::uint64_t count = ceil_div(generations_in_all(), soak_cases().size());
    pool();
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_NO_FATAL_FAILURE(make_operators());
    for (std::uint64_t launch_idx = 0; launch_idx < count; ++launch_idx) {
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            ASSERT_NO_FATAL_FAILURE(launch(rank, set_of(launch_idx)));
        }
        if (launch_idx % kQueued == kQueued - 1) {
            ASSERT_NO_FATAL_FAILURE(synchronize());
        }
    }
    ASSERT_NO_FATAL_FAILURE(synchronize());
    EXPECT_EQ(wrong_.load(), 0U);
    EXPECT_EQ(compared_.load(), count * kRanks);
    EXPECT_EQ(ops_[0]->statistics().generation,
              GetParam().start.generation + static_cast<std::uint32_t>(count));
    EXPECT_GT(laps(), count);
    totals_.starts += 1;
    totals_.generations += count;
    totals_.laps += laps();
    totals_.compared += compared_.load();
    totals_.wrong += wrong_.load();
    totals_.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

INSTANTIATE_TEST_SUITE_P(, Soak, testing::ValuesIn(soak_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace gcmoe
