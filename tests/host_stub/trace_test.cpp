// What the roles' bodies record: every task and row once, in order, the same y with and without.
#include <gtest/gtest.h>

#include <ostream>

#include "host_stub/host_roles.hpp"
#include "op/operator_state.hpp"
#include "support/trace_checks.hpp"

namespace gcmoe::host_stub {
namespace {

using layout::CombineOn;

constexpr int kTokens = 44;

struct TraceCase {
    const char* name;
    int num_ranks;
    CombineOn combine_on;
    int shared_inter;
};
void PrintTo(const TraceCase& which, std::ostream* out) { *out << which.name; }

OperatorOptions options_of_layer() {
    OperatorOptions options;
    options.max_tokens = kTokens;
    options.plans.resize(1);
    options.plans[0].row_block = 8;
    options.plans[0].ring_blocks = 2;
    options.plans[0].second_columns = 256;
    return options;
}

class HostTrace : public testing::TestWithParam<TraceCase> {
  protected:
    static Shape shape_of(const TraceCase& which) {
        Shape shape = test::small_shape(which.num_ranks, which.shared_inter);
        shape.num_experts = 4;
        shape.topk = 2;
        return shape;
    }
    // Every launch has the same inputs.
    [[nodiscard]] test::GpuLaunchFacts facts(const HostRanks& ranks, int rank,
                                             std::uint32_t generation) const {
        test::GpuLaunchFacts facts;
        facts.rank = rank;
        facts.generation = generation;
        facts.plan = ranks.plan(rank);
        facts.alone = which_.num_ranks == 1;
        const layout::StateWords& state = ranks.state(rank);
        facts.blocks = state.blocks_received / state.generation;
        facts.rows = state.rows_received / state.generation;
        if (which_.shared_inter != 0) {
            const auto tokens = static_cast<std::uint32_t>(inputs_[at(rank)].num_tokens);
            facts.shared_blocks = (tokens + 7) / 8;
            facts.shared_n1 = static_cast<std::uint32_t>(which_.shared_inter) / 128;
        }
        return facts;
    }
    static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

    const TraceCase which_ = GetParam();
    const Shape shape_ = shape_of(which_);
    const std::vector<reference::RankInputs> inputs_ =
        test::spread_inputs(shape_, 3, kTokens, kTokens, 0.1);
};

TEST_P(HostTrace, HoldsEveryTaskOnceAndChangesNoBit) {
    test::VirtualLayer plain_layer{shape_, {}, options_of_layer()};
    test::VirtualLayer layer{shape_, {}, options_of_layer()};
    HostRanks plain{&plain_layer, inputs_, which_.combine_on};
    HostRanks ranks{&layer, inputs_, which_.combine_on};
    ranks.record(512);
    for (std::uint32_t launch = 1; launch <= 2; ++launch) {
        ASSERT_EQ(plain.run(), "");
        ASSERT_EQ(ranks.run(), "");
        const trace::Trace trace = ranks.trace();
        test::expect_no_overlap(trace);
        for (int rank = 0; rank < which_.num_ranks; ++rank) {
            test::expect_gpu_launch(trace, facts(ranks, rank, launch));
            EXPECT_TRUE(ranks.y(rank) == plain.y(rank)) << "rank " << rank;
        }
    }
    EXPECT_EQ(plain.trace().num_events(), 0U);
}

class SmallHostLogs : public HostTrace {};

// Full logs drop the rest and count it.
TEST_P(SmallHostLogs, CountWhatTheyDrop) {
    std::uint64_t all = 0;
    for (const std::uint32_t capacity : {512U, 2U, 1U}) {
        test::VirtualLayer layer{shape_, {}, options_of_layer()};
        HostRanks ranks{&layer, inputs_, which_.combine_on};
        ranks.record(capacity);
        ASSERT_EQ(ranks.run(), "");
        const trace::Trace trace = ranks.trace();
        test::expect_no_overlap(trace);
        for (const trace::Track& track : trace.tracks) {
            ASSERT_LE(track.events.size(), capacity);
            EXPECT_TRUE(track.num_dropped == 0 || track.events.size() == capacity);
        }
        // How many waits are seen depends on times; tasks, rows and steps do not.
        if (capacity == 512) {
            ASSERT_EQ(trace.num_dropped(), 0U);
            for (const trace::Track& track : trace.tracks) {
                for (const trace::Event& event : track.events) {
                    if (event.kind != trace::Kind::kWait) ++all;
                }
            }
        } else {
            EXPECT_GE(trace.num_events() + trace.num_dropped(), all);
            EXPECT_GT(trace.num_dropped(), 0U);
        }
    }
}

std::string name_of(const testing::TestParamInfo<TraceCase>& which) { return which.param.name; }

INSTANTIATE_TEST_SUITE_P(Stub, HostTrace,
                         testing::Values(TraceCase{"Compute", 1, CombineOn::kCompute, 0},
                                         TraceCase{"ComputeShared", 1, CombineOn::kCompute, 128},
                                         TraceCase{"ComputeTwoRanks", 2, CombineOn::kCompute, 0},
                                         TraceCase{"FollowTwoRanks", 2, CombineOn::kFollow, 128},
                                         TraceCase{"OneGrid", 1, CombineOn::kAll, 128},
                                         TraceCase{"OneGridTwoRanks", 2, CombineOn::kAll, 0}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Stub, SmallHostLogs,
                         testing::Values(TraceCase{"Compute", 1, CombineOn::kCompute, 128},
                                         TraceCase{"OneGrid", 1, CombineOn::kAll, 0}),
                         name_of);

}  // namespace
}  // namespace gcmoe::host_stub
