// Resets over processes: all ranks together, a process in place of a lost one, fewer ranks; and a
// stopped rank that wakes up when the others have gone on.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <set>
#include <sstream>

#include "fault_memory.hpp"
#include "group/group_state.hpp"
#include "process_layer.hpp"

namespace gcmoe {
namespace {

using namespace test;

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr double kDeadlineSeconds = 0.4;

// Points of a test, as places on the board.
enum Point { kStalled = 0, kVictimStopped = 1, kMoved = 2, kWoken = 3 };

OperatorOptions short_options() { return process_options(kDeadlineSeconds); }

void use_fault_memory(RankSide* side) {
    side->prepare = [](Group* group) {
        group->state().executor = std::make_shared<cpu::ThreadRoles>(FaultMemory::roles());
    };
}

void expect_bits(const Shape& shape, std::uint64_t seed, int rank, const Outcome& outcome) {
    EXPECT_TRUE(outcome.ended) << "rank " << rank;
    EXPECT_EQ(outcome.code, Code::kOk) << "rank " << rank << ": " << outcome.message;
    EXPECT_EQ(outcome.y, bits_on_threads(shape, seed)[static_cast<std::size_t>(rank)])
        << "rank " << rank;
    EXPECT_EQ(outcome.leaks, "") << "rank " << rank;
}

// ---- all ranks alive

class AllAlive : public testing::TestWithParam<bool> {};

// One rank is stopped beyond the deadline and goes on; then all reset together.
TEST_P(AllAlive, StoppedRankTakesPartInTheReset) {
    const bool move = GetParam();
    const Shape shape = process_shape(kRanks);
    pack_before_fork(shape);
    const ScratchPath session;
    SharedBoard board;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.options = short_options();
            use_fault_memory(&side);
            if (!side.run(1, out).ok()) return;
            if (rank == kVictim) FaultMemory::arm(FaultPoint::kFirstGemm, SIGSTOP);
            if (!side.launch(kFullSeed).ok()) return;
            const Status stalled = side.finish(out);
            ++board->arrived[kStalled];
            if (stalled.code() != Code::kStalled) return;
            Status status = side.reset(move);
            for (std::uint64_t seed = kFullSeed; seed < kFullSeed + 4 && status.ok(); ++seed) {
                status = side.launch(seed);
                if (status.ok()) status = side.finish(out);
            }
            out->set(status);
            side.leave();
        });
    }
    ASSERT_TRUE(ranks[kVictim].wait_stopped());
    ASSERT_TRUE(SharedBoard::wait(board->arrived[kStalled], kRanks - 1));
    ranks[kVictim].signal(SIGCONT);
    std::vector<Outcome> outcomes;
    for (RankProcess& rank : ranks) outcomes.push_back(rank.wait());
    for (int rank = 0; rank < kRanks; ++rank) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        expect_bits(shape, kFullSeed + 3, rank, outcome);
        EXPECT_EQ(outcome.session, 2U);
        EXPECT_EQ(culprit_of(outcome.report), kVictim) << "rank " << rank;
    }
    EXPECT_FALSE(session.exists());
}

std::string move_name(const testing::TestParamInfo<bool>& param) {
    return param.param ? "NewMemory" : "SameMemory";
}
INSTANTIATE_TEST_SUITE_P(Reset, AllAlive, testing::Bool(), move_name);

// ---- another process in place of a lost rank

constexpr std::uint64_t kLaunches = 40;

// The launches of the new session, with the outputs of all of them; after the third, everybody
// waits for the stopped rank's waking.
void go_on(RankSide* side, SharedBoard* board, Outcome* out) {
    Status status;
    std::vector<std::uint16_t> all;
    for (std::uint64_t i = 0; i < kLaunches && status.ok(); ++i) {
        status = side->launch(kFullSeed + i);
        if (status.ok()) status = side->finish(out);
        all.insert(all.end(), out->y.begin(), out->y.end());
        if (i != 2) continue;
        ++(*board)->arrived[kMoved];
        SharedBoard::wait((*board)->go[kWoken], 1);
    }
    out->y = std::move(all);
    out->set(status);
}

// The heaps that this process has mapped, by their files' numbers.
std::set<std::string> mapped_heaps() {
    std::set<std::string> all;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("memfd:gcmoe-heap") == std::string::npos) continue;
        std::istringstream words(line);
        std::string word;
        for (int i = 0; i < 5; ++i) words >> word;  // range, rights, offset, device, number
        all.insert(word);
    }
    return all;
}

Status expect_all_new(const std::set<std::string>& before) {
    const std::set<std::string> now = mapped_heaps();
    for (const std::string& heap : now) {
        if (before.count(heap) != 0) return {Code::kInternal, "heap " + heap + " has not moved"};
    }
    if (now.size() == kRanks) return {};
    return {Code::kInternal, std::to_string(now.size()) + " heaps are mapped"};
}

void expect_all_launches(const Shape& shape, const std::vector<Outcome>& outcomes) {
    std::vector<std::uint16_t> wanted[kRanks];
    for (std::uint64_t i = 0; i < kLaunches; ++i) {
        const auto bits = bits_on_threads(shape, kFullSeed + i);
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
            wanted[rank].insert(wanted[rank].end(), bits[rank].begin(), bits[rank].end());
        }
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const Outcome& outcome = outcomes[rank];
        EXPECT_EQ(outcome.code, Code::kOk) << "rank " << rank << ": " << outcome.message;
        EXPECT_TRUE(outcome.y == wanted[rank]) << "rank " << rank << ": some launch differs";
        EXPECT_EQ(outcome.leaks, "") << "rank " << rank;
        EXPECT_EQ(outcome.session, 2U);
    }
}

// A rank stops in the middle of role 2 with stores ahead of it. The others and a new process reset
// into new memory; while they launch, the stopped one wakes up and makes its stores.
TEST(Replacement, LateWriterCorruptsNothing) {
    const Shape shape = process_shape(kRanks);
    pack_before_fork(shape);
    const ScratchPath session;
    SharedBoard board;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.options = short_options();
            if (rank == kVictim) side.meet_s = 2;
            use_fault_memory(&side);
            if (!side.run(1, out).ok()) return;
            if (rank == kVictim) FaultMemory::arm(FaultPoint::kSecondGemm, SIGSTOP);
            if (!side.launch(kFullSeed).ok()) return;
            if (side.finish(out).code() != Code::kStalled) return;
            if (rank == kVictim) {
                // Its place is taken: nobody meets it again.
                out->set(side.reset(true));
                return side.leave();
            }
            ++board->arrived[kStalled];
            const std::set<std::string> before = mapped_heaps();
            Status status = side.reset(true);
            if (status.ok()) status = expect_all_new(before);
            if (!status.ok()) return out->set(status);
            go_on(&side, &board, out);
            side.leave();
        });
    }
    RankProcess replacement([&](Outcome* out) {
        SharedBoard::wait(board->arrived[kStalled], kRanks - 1);
        RankSide side(shape, kVictim, session.path());
        side.options = short_options();
        Status status = side.join();
        if (status.ok()) status = side.create();
        if (!status.ok()) return out->set(status);
        go_on(&side, &board, out);
        side.leave();
    });
    ASSERT_TRUE(ranks[kVictim].wait_stopped());
    ASSERT_TRUE(SharedBoard::wait(board->arrived[kMoved], kRanks));
    ranks[kVictim].signal(SIGCONT);
    board->go[kWoken] = 1;
    std::vector<Outcome> outcomes;
    for (RankProcess& rank : ranks) outcomes.push_back(rank.wait());
    EXPECT_EQ(outcomes[kVictim].code, Code::kStalled) << outcomes[kVictim].message;
    EXPECT_EQ(culprit_of(outcomes[kVictim].report), kVictim) << "it hears that it was the cause";
    outcomes[kVictim] = replacement.wait();
    expect_all_launches(shape, outcomes);
}

// Rank 0 is the one who is lost: its replacement takes over the session's folder.
TEST(Replacement, OfRankZero) {
    const Shape shape = process_shape(3);
    pack_before_fork(shape);
    const ScratchPath session;
    SharedBoard board;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.options = short_options();
            if (!side.run(1, out).ok()) return;
            if (rank == 0) ::raise(SIGKILL);
            if (!side.launch(2).ok()) return;
            if (side.finish(out).code() != Code::kStalled) return;
            ++board->arrived[kStalled];
            Status status = side.reset(true);
            if (status.ok()) status = side.launch(3);
            if (status.ok()) status = side.finish(out);
            out->set(status);
            side.leave();
        });
    }
    RankProcess replacement([&](Outcome* out) {
        SharedBoard::wait(board->arrived[kStalled], 2);
        RankSide side(shape, 0, session.path());
        side.replaces_lost = true;
        (void)side.run(3, out);
        side.leave();
    });
    EXPECT_FALSE(ranks[0].wait().ended);
    std::vector<Outcome> outcomes{replacement.wait(), ranks[1].wait(), ranks[2].wait()};
    for (int rank = 0; rank < 3; ++rank) {
        expect_bits(shape, 3, rank, outcomes[static_cast<std::size_t>(rank)]);
    }
    EXPECT_FALSE(session.exists());
}

// Memory that a lost rank may still write must not be used again.
TEST(Replacement, IsRefusedWithoutMoveOnEveryRank) {
    const Shape shape = process_shape(3);
    pack_before_fork(shape);
    const ScratchPath session;
    SharedBoard board;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.options = short_options();
            if (!side.run(1, out).ok()) return;
            if (rank == 1) ::raise(SIGKILL);
            if (!side.launch(2).ok()) return;
            if (side.finish(out).code() != Code::kStalled) return;
            ++board->arrived[kStalled];
            out->set(side.reset(false));
            if (side.op().launch({}).code() != Code::kBusy) out->message = "it launches";
            side.leave();
        });
    }
    RankProcess replacement([&](Outcome* out) {
        SharedBoard::wait(board->arrived[kStalled], 2);
        RankSide side(shape, 1, session.path());
        (void)side.run(3, out);
        side.leave();
    });
    EXPECT_FALSE(ranks[1].wait().ended);
    for (RankProcess* rank : {&ranks[0], &replacement, &ranks[2]}) {
        const Outcome outcome = rank->wait();
        EXPECT_EQ(outcome.code, Code::kBadInput);
        EXPECT_EQ(outcome.message,
                  "workspace 'default': a reset without move uses memory again, and rank 1 is "
                  "another process than in the session before: the lost one may still write there; "
                  "reset with move on all ranks");
    }
}

// Ranks that do not agree on the kind of reset.
TEST(ResetMismatch, IsNamedToAll) {
    const Shape shape = process_shape(2);
    pack_before_fork(shape);
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            if (!side.run(1, out).ok()) return;
            out->set(side.reset(rank == 1));
            side.leave();
        });
    }
    for (RankProcess& rank : ranks) {
        EXPECT_EQ(rank.wait().message,
                  "workspace 'default': ranks differ: move = false on rank 0 "
                  "but move = true on rank 1");
    }
}

// The survivors make a smaller group of their own, in another session.
TEST(FewerRanks, SurvivorsGoOnInANewSession) {
    const Shape shape = process_shape(kRanks);
    const Shape smaller = process_shape(kRanks - 1);
    pack_before_fork(shape);
    pack_before_fork(smaller);
    const ScratchPath session;
    const ScratchPath next;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.options = short_options();
            if (!side.run(1, out).ok()) return;
            if (rank == kVictim) ::raise(SIGKILL);
            if (!side.launch(2).ok()) return;
            if (side.finish(out).code() != Code::kStalled) return;
            side.leave();
            RankSide again(smaller, rank < kVictim ? rank : rank - 1, next.path());
            (void)again.run(3, out);
            again.leave();
        });
    }
    EXPECT_FALSE(ranks[kVictim].wait().ended);
    std::vector<Outcome> outcomes{ranks[0].wait(), ranks[1].wait(), ranks[3].wait()};
    for (int rank = 0; rank < kRanks - 1; ++rank) {
        expect_bits(smaller, 3, rank, outcomes[static_cast<std::size_t>(rank)]);
    }
    EXPECT_FALSE(session.exists());
    EXPECT_FALSE(next.exists());
}

// A reset that not everybody comes to fails in bounded time, and can be tried again.
TEST(ResetInTime, MissingRankIsNamedAndAnotherTryWorks) {
    const Shape shape = process_shape(3);
    pack_before_fork(shape);
    const ScratchPath session;
    SharedBoard board;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            RankSide side(shape, rank, session.path());
            side.meet_s = 0.6;
            if (!side.run(1, out).ok()) return;
            if (rank == 1) {
                SharedBoard::wait(board->arrived[kStalled], 2);
            } else {
                out->set(side.reset(true));
                if (out->message != "workspace 'default': rank 1 of 3 has not come within 0.6 s")
                    return;
                ++board->arrived[kStalled];
            }
            Status status = side.reset(true);
            if (status.ok()) status = side.launch(4);
            if (status.ok()) status = side.finish(out);
            out->set(status);
            side.leave();
        });
    }
    std::vector<Outcome> outcomes;
    for (RankProcess& rank : ranks) outcomes.push_back(rank.wait());
    for (int rank = 0; rank < 3; ++rank) {
        expect_bits(shape, 4, rank, outcomes[static_cast<std::size_t>(rank)]);
    }
}

}  // namespace
}  // namespace gcmoe
