// A rank is killed or stopped at a point of its life: the others give up in time and name it.
//   build/cpu/tests/test_processes --gtest_filter='Faults/*' | grep '^|'
// prints the table of docs/processes.md.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <ostream>
#include <string>
#include <tuple>

#include "fault_memory.hpp"
#include "group/group_state.hpp"
#include "process_layer.hpp"

namespace gcmoe {
namespace {

using namespace test;

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr double kDeadlineSeconds = 0.5;
constexpr std::uint64_t kGoodSeed = 1;

// How the victim's life ends.
enum class End { kKilled, kStopped, kExits };

struct Phase {
    const char* name;
    const char* text;
    FaultPoint point;
    int launch;          // the launch in which it happens, from 1
    int stalled_launch;  // the launch that the others cannot finish
};

constexpr Phase kPhases[] = {
    {"BeforeFirstLaunch", "after the meeting, before its first launch", FaultPoint::kNone, 1, 1},
    {"BetweenLaunches", "between two launches", FaultPoint::kNone, 2, 2},
    {"BeforeCounts", "role 1, before its counts are out", FaultPoint::kBeforeCounts, 2, 2},
    {"HalfCounts", "role 1, some ranks have its counts", FaultPoint::kHalfCounts, 2, 2},
    {"FirstRows", "role 1, pulling rows", FaultPoint::kFirstRows, 2, 2},
    {"FirstGemm", "role 2, first GEMM", FaultPoint::kFirstGemm, 2, 2},
    {"SecondGemm", "role 2, second GEMM", FaultPoint::kSecondGemm, 2, 2},
    {"Done", "role 2, before it says that it is done", FaultPoint::kDone, 2, 2},
    {"Combine", "role 3", FaultPoint::kCombine, 2, 3},
};

const char* end_text(End end) {
    switch (end) {
        case End::kKilled:
            return "kill -9";
        case End::kStopped:
            return "SIGSTOP";
        case End::kExits:
            return "exit";
    }
    return "";
}

using Fault = std::tuple<End, Phase>;
void PrintTo(const Phase& phase, std::ostream* out) { *out << phase.name; }

class Faults : public testing::TestWithParam<Fault> {
  protected:
    // One rank's life. The victim ends it; the others launch until they cannot.
    static void live(const Shape& shape, int rank, const std::string& session, Outcome* out) {
        const auto& [end, phase] = GetParam();
        const int signal = end == End::kKilled ? SIGKILL : SIGSTOP;
        RankSide side(shape, rank, session);
        // The long limit of first launches, except where the first launch is the one.
        const double first_s = phase.stalled_launch == 1 ? kDeadlineSeconds : 30;
        side.options.wait_limits = {first_s, kDeadlineSeconds};
        side.prepare = [](Group* group) {
            group->state().executor = std::make_shared<cpu::ThreadRoles>(FaultMemory::roles());
        };
        Status status = side.join();
        if (status.ok()) status = side.create();
        for (int launch = 1; launch <= phase.stalled_launch && status.ok(); ++launch) {
            const bool strikes = rank == kVictim && launch == phase.launch;
            if (strikes && phase.point == FaultPoint::kNone) {
                if (end == End::kExits) return side.leave();
                ::raise(signal);
            }
            if (strikes) FaultMemory::arm(phase.point, signal);
            status = side.launch(launch < phase.launch ? kGoodSeed : kFullSeed);
            if (status.ok()) status = side.finish(out);
        }
        out->set(status);
        side.leave();
    }
};

TEST_P(Faults, OthersGiveUpInTimeAndNameTheRank) {
    const auto& [end, phase] = GetParam();
    const Shape shape = process_shape(kRanks);
    pack_before_fork(shape);
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) { live(shape, rank, session.path(), out); });
    }
    double worst_s = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == kVictim) continue;
        const Outcome outcome = ranks[static_cast<std::size_t>(rank)].wait();
        EXPECT_TRUE(outcome.ended);
        EXPECT_EQ(outcome.code, Code::kStalled) << outcome.message;
        EXPECT_EQ(culprit_of(outcome.report), kVictim) << outcome.message;
        EXPECT_EQ(outcome.report.generation, static_cast<std::uint32_t>(phase.stalled_launch));
        EXPECT_NE(outcome.message.find("rank 2"), std::string::npos) << outcome.message;
        EXPECT_LT(outcome.stall_s, most_seconds(kDeadlineSeconds));
        EXPECT_EQ(outcome.leaks, "");
        worst_s = std::max(worst_s, outcome.stall_s);
    }
    EXPECT_FALSE(session.exists());
    std::printf("| %s | %s | launch %d stalls on the other ranks | rank %d | %.2f |\n",
                end_text(end), phase.text, phase.stalled_launch, kVictim, worst_s);
}

std::string fault_name(const testing::TestParamInfo<Fault>& param) {
    const End end = std::get<0>(param.param);
    const char* how = end == End::kKilled ? "Killed" : end == End::kStopped ? "Stopped" : "Exits";
    return std::string(how) + std::get<1>(param.param).name;
}

INSTANTIATE_TEST_SUITE_P(Kill, Faults,
                         testing::Combine(testing::Values(End::kKilled),
                                          testing::ValuesIn(kPhases)),
                         fault_name);
INSTANTIATE_TEST_SUITE_P(Stop, Faults,
                         testing::Combine(testing::Values(End::kStopped),
                                          testing::ValuesIn(kPhases)),
                         fault_name);
INSTANTIATE_TEST_SUITE_P(Exit, Faults,
                         testing::Combine(testing::Values(End::kExits),
                                          testing::Values(kPhases[0], kPhases[1])),
                         fault_name);

}  // namespace
}  // namespace gcmoe
