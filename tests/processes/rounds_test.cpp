// A session folder that is used again: sessions follow each other in it, and a rank that comes
// while the earlier one's rank 0 still holds it waits for its own. And ranks that fail between an
// agreement and the start.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "group/host_session.hpp"
#include "process_layer.hpp"

namespace gcmoe::group {
namespace {

using test::Outcome;
using test::RankProcess;
using test::ScratchPath;
using test::SharedBoard;

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

HostOptions host(const std::string& session, int rank, int num_ranks, double wait_s) {
    HostOptions options;
    options.session = session;
    options.rank = rank;
    options.num_ranks = num_ranks;
    options.wait_s = wait_s;
    return options;
}

Status do_nothing(const Agreement&) { return {}; }

Status meet(HostSession* session, const Prepare& prepare = do_nothing, bool is_reset = false) {
    Offer offer;
    offer.subject = "workspace 'w'";
    offer.is_reset = is_reset;
    offer.move = is_reset;
    return session->meet(
        std::move(offer), [](int, const SharedHandle&) {}, prepare);
}

Status come(const HostOptions& options, const Prepare& prepare = do_nothing) {
    std::unique_ptr<HostSession> session;
    GCMOE_RETURN_IF_ERROR(HostSession::open(options, &session));
    return meet(session.get(), prepare);
}

// A rank 0 that has met nobody, or all, and stays until the board says go[0].
RankProcess holder(const std::string& folder, SharedBoard* board) {
    return RankProcess([=](Outcome* out) {
        std::unique_ptr<HostSession> session;
        out->set(HostSession::open(host(folder, 0, 1, 5), &session));
        if (out->code == Code::kOk) out->set(meet(session.get()));
        ++(*board)->arrived[0];
        SharedBoard::wait((*board)->go[0], 1);
    });
}

// ---- the folder is still held

// Every rank of the second session has come before the first one's rank 0 has ended.
TEST(Rounds, RanksWaitForTheSessionBeforeToEnd) {
    const ScratchPath folder;
    SharedBoard board;
    RankProcess before = holder(folder.path(), &board);
    ASSERT_TRUE(SharedBoard::wait(board->arrived[0], 1));
    std::vector<RankProcess> ranks;
    for (const int rank : {1, 2, 0}) {
        ranks.emplace_back([&, rank](Outcome* out) {
            ++board->arrived[1];
            out->set(come(host(folder.path(), rank, 3, 10)));
        });
    }
    ASSERT_TRUE(SharedBoard::wait(board->arrived[1], 3));
    ::usleep(300000);
    board->go[0] = 1;
    EXPECT_EQ(before.wait().code, Code::kOk);
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        EXPECT_TRUE(outcome.ended);
        EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
    }
    EXPECT_FALSE(folder.exists());
}

// The rank has read the old session's token, and only then does a new rank 0 take the folder.
TEST(Rounds, ARankThatKnowsTheOldTokenReadsTheNewOne) {
    const ScratchPath folder;
    std::unique_ptr<HostSession> before;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 0, 2, 5), &before).ok());
    SharedBoard board;
    RankProcess one([&](Outcome* out) {
        std::unique_ptr<HostSession> session;
        out->set(HostSession::open(host(folder.path(), 1, 2, 10), &session));
        ++board->arrived[0];
        SharedBoard::wait(board->go[0], 1);
        if (out->code == Code::kOk) out->set(meet(session.get()));
    });
    ASSERT_TRUE(SharedBoard::wait(board->arrived[0], 1));
    before.reset();
    RankProcess zero([&](Outcome* out) { out->set(come(host(folder.path(), 0, 2, 10))); });
    board->go[0] = 1;
    EXPECT_EQ(zero.wait().code, Code::kOk);
    const Outcome outcome = one.wait();
    EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
}

TEST(Rounds, WaitingForALiveSessionEndsAndNamesBothProcesses) {
    const ScratchPath folder;
    SharedBoard board;
    RankProcess before = holder(folder.path(), &board);
    ASSERT_TRUE(SharedBoard::wait(board->arrived[0], 1));
    const std::string holds = std::to_string(before.pid());
    for (const int rank : {0, 1}) {
        RankProcess late([&](Outcome* out) { out->set(come(host(folder.path(), rank, 2, 0.5))); });
        const std::string comes = std::to_string(late.pid());
        const double begin = now_s();
        const Outcome outcome = late.wait();
        EXPECT_LT(now_s() - begin, test::most_seconds(0.5 + 0.75));
        EXPECT_GE(now_s() - begin, 0.4);
        EXPECT_EQ(outcome.code, rank == 0 ? Code::kBadInput : Code::kStalled);
        const std::string wanted =
            rank == 0
                ? "session folder '" + folder.path() + "' is in use by a live session, which has " +
                      "not ended within 0.5 s: its rank 0 is process " + holds +
                      ", this one is process " + comes
                : "workspace 'w': rank 0 of 2 has not come within 0.5 s: session folder '" +
                      folder.path() + "' belongs to process " + holds +
                      ", which has let nobody in (this is process " + comes + ")";
        EXPECT_EQ(outcome.message, wanted);
    }
    board->go[0] = 1;
    EXPECT_EQ(before.wait().code, Code::kOk);
}

// A member of a session belongs to it: where another one has taken the folder, it hears so at once.
TEST(Rounds, AMemberDoesNotFollow) {
    const ScratchPath folder;
    SharedBoard board;
    RankProcess zero([&](Outcome* out) { out->set(come(host(folder.path(), 0, 2, 5))); });
    RankProcess member([&](Outcome* out) {
        std::unique_ptr<HostSession> session;
        out->set(HostSession::open(host(folder.path(), 1, 2, 10), &session));
        if (out->code == Code::kOk) out->set(meet(session.get()));
        ++board->arrived[0];
        SharedBoard::wait(board->go[0], 1);
        const double begin = now_s();
        if (out->code == Code::kOk) out->set(meet(session.get(), do_nothing, true));
        out->stall_s = now_s() - begin;
    });
    EXPECT_EQ(zero.wait().code, Code::kOk);
    ASSERT_TRUE(SharedBoard::wait(board->arrived[0], 1));
    RankProcess other([&](Outcome* out) {
        std::unique_ptr<HostSession> session;
        out->set(HostSession::open(host(folder.path(), 0, 2, 1.5), &session));
        board->go[0] = 1;
        if (out->code == Code::kOk) out->set(meet(session.get()));
    });
    const Outcome outcome = member.wait();
    EXPECT_EQ(outcome.code, Code::kBadInput);
    EXPECT_EQ(outcome.message, "rank 1 is refused: process " + std::to_string(member.pid()) +
                                   " belongs to another session of this folder than rank 0, which "
                                   "is process " +
                                   std::to_string(other.pid()));
    EXPECT_LT(outcome.stall_s, 1);
    EXPECT_EQ(other.wait().code, Code::kStalled);
}

// Ranks of the next session come while this one is between two meetings, and another one that is of
// no session: none takes a member's place, and the next session meets when this one has ended.
TEST(Rounds, NewcomersWaitWhileMembersMeetAgain) {
    const ScratchPath folder;
    SharedBoard board;
    const auto start_member = [&](int rank) {
        return RankProcess([&, rank](Outcome* out) {
            std::unique_ptr<HostSession> session;
            out->set(HostSession::open(host(folder.path(), rank, 2, 10), &session));
            if (out->code == Code::kOk) out->set(meet(session.get()));
            ++board->arrived[0];
            SharedBoard::wait(board->go[rank], 1);
            if (out->code == Code::kOk) out->set(meet(session.get()));
        });
    };
    RankProcess zero = start_member(0);
    RankProcess one = start_member(1);
    ASSERT_TRUE(SharedBoard::wait(board->arrived[0], 2));
    const auto come_as = [&](int rank, int num_ranks, double wait_s) {
        return RankProcess([=, &board, &folder](Outcome* out) {
            ++board->arrived[1];
            out->set(come(host(folder.path(), rank, num_ranks, wait_s)));
        });
    };
    RankProcess next_one = come_as(1, 2, 20);
    RankProcess next_zero = come_as(0, 2, 20);
    RankProcess stray = come_as(2, 3, 0.5);
    ASSERT_TRUE(SharedBoard::wait(board->arrived[1], 3));
    board->go[0] = 1;  // its meeting is open to the newcomers before the member comes
    const Outcome outsider = stray.wait();
    board->go[1] = 1;
    EXPECT_EQ(outsider.code, Code::kStalled);
    EXPECT_NE(outsider.message.find("belongs to process " + std::to_string(zero.pid())),
              std::string::npos)
        << outsider.message;
    for (RankProcess* rank : {&zero, &one, &next_zero, &next_one}) {
        const Outcome outcome = rank->wait();
        EXPECT_TRUE(outcome.ended);
        EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
    }
    EXPECT_FALSE(folder.exists());
}

// ---- an early way out between the agreement and the start

struct WayOut {
    const char* name;
    Prepare prepare;
    Code code;
    const char* words;
};

TEST(EarlyWayOut, OfOneRankIsToldToAllAtOnce) {
    const WayOut ways[] = {
        {"status", [](const Agreement&) { return Status(Code::kBadConfig, "no place"); },
         Code::kBadConfig, "no place"},
        {"memory", [](const Agreement&) -> Status { throw std::bad_alloc(); }, Code::kUnsupported,
         "no memory"},
        {"bug", [](const Agreement&) -> Status { throw std::logic_error("a bug"); },
         Code::kInternal, "a bug"},
        {"number", [](const Agreement&) -> Status { throw 7; }, Code::kInternal,
         "an exception of unknown type"},
    };
    for (const WayOut& way : ways) {
        for (const int thrower : {0, 1, 2}) {
            const ScratchPath folder;
            std::vector<RankProcess> ranks;
            const double begin = now_s();
            for (int rank = 0; rank < 3; ++rank) {
                ranks.emplace_back([&, rank](Outcome* out) {
                    out->set(come(host(folder.path(), rank, 3, 20),
                                  rank == thrower ? way.prepare : Prepare(do_nothing)));
                });
            }
            for (RankProcess& rank : ranks) {
                const Outcome outcome = rank.wait();
                EXPECT_EQ(outcome.code, way.code) << way.name << thrower;
                EXPECT_EQ(outcome.message,
                          "rank " + std::to_string(thrower) + ": " + std::string(way.words));
            }
            EXPECT_LT(now_s() - begin, test::most_seconds(0)) << way.name << thrower;
        }
    }
}

// While the peers' memory is taken: rank 0 is still handing out, or has handed out everything.
TEST(EarlyWayOut, WhileHandlesAreTakenIsToldToAllAtOnce) {
    for (const int thrower : {0, 1, 2}) {
        const ScratchPath folder;
        std::vector<RankProcess> ranks;
        const double begin = now_s();
        for (int rank = 0; rank < 3; ++rank) {
            ranks.emplace_back([&, rank](Outcome* out) {
                std::unique_ptr<HostSession> session;
                out->set(HostSession::open(host(folder.path(), rank, 3, 20), &session));
                Offer offer;
                offer.subject = "workspace 'w'";
                offer.handle = {"memfd", 1, UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC))};
                const auto take = [&](int, const SharedHandle&) {
                    if (rank == thrower) throw std::bad_alloc();
                };
                if (out->code == Code::kOk) {
                    out->set(session->meet(std::move(offer), take, do_nothing));
                }
            });
        }
        for (RankProcess& rank : ranks) {
            const Outcome outcome = rank.wait();
            EXPECT_EQ(outcome.code, Code::kUnsupported) << thrower;
            EXPECT_EQ(outcome.message, "rank " + std::to_string(thrower) + ": no memory");
        }
        EXPECT_LT(now_s() - begin, test::most_seconds(0)) << thrower;
    }
}

// Who brings a failure, and who has come, need not wait for who has not; and that one hears it too.
TEST(EarlyWayOut, DoesNotWaitForARankThatHasNotCome) {
    const ScratchPath folder;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            if (rank == 2) ::usleep(800000);
            const double begin = now_s();
            std::unique_ptr<HostSession> session;
            out->set(HostSession::open(host(folder.path(), rank, 3, 20), &session));
            Offer offer;
            offer.subject = "workspace 'w'";
            if (rank == 1) offer.failure = {Code::kUnsupported, "no memory"};
            if (out->code == Code::kOk) {
                out->set(session->meet(
                    std::move(offer), [](int, const SharedHandle&) {}, do_nothing));
            }
            out->stall_s = now_s() - begin;
        });
    }
    for (int rank = 0; rank < 3; ++rank) {
        const Outcome outcome = ranks[static_cast<std::size_t>(rank)].wait();
        EXPECT_EQ(outcome.message, "workspace 'w': rank 1: no memory") << rank;
        if (rank != 0) {
            EXPECT_LT(outcome.stall_s, 0.5) << rank;
        }
    }
}

// A rank that cannot make its memory has not come to the meeting yet.
TEST(EarlyWayOut, BeforeTheMeetingIsToldToAllAtOnce) {
    const Shape shape = test::process_shape(3);
    test::pack_before_fork(shape);
    for (const int poor : {0, 2}) {
        const ScratchPath folder;
        std::vector<RankProcess> ranks;
        const double begin = now_s();
        for (int rank = 0; rank < 3; ++rank) {
            ranks.emplace_back([&, rank](Outcome* out) {
                test::RankSide side(shape, rank, folder.path());
                out->set(side.join());
                const rlimit small{4096, 4096};
                ::signal(SIGXFSZ, SIG_IGN);
                if (rank == poor && ::setrlimit(RLIMIT_FSIZE, &small) != 0) return;
                if (out->code == Code::kOk) out->set(side.create());
            });
        }
        for (RankProcess& rank : ranks) {
            const Outcome outcome = rank.wait();
            EXPECT_EQ(outcome.code, Code::kUnsupported) << outcome.message;
            const std::string begins = "workspace 'default': rank " + std::to_string(poor) + ": ";
            EXPECT_EQ(outcome.message.substr(0, begins.size()), begins);
            EXPECT_NE(outcome.message.find(" bytes of shared memory: "), std::string::npos)
                << outcome.message;
        }
        EXPECT_LT(now_s() - begin, test::most_seconds(0)) << poor;
    }
}

// The same session can meet again.
TEST(EarlyWayOut, LeavesASessionThatCanMeetAgain) {
    const ScratchPath folder;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            std::unique_ptr<HostSession> session;
            out->set(HostSession::open(host(folder.path(), rank, 2, 20), &session));
            if (out->code != Code::kOk) return;
            const Status first = meet(session.get(), [&](const Agreement&) -> Status {
                if (rank == 1) throw std::bad_alloc();
                return {};
            });
            out->set(meet(session.get()));
            if (first.code() != Code::kUnsupported) out->set(first);
        });
    }
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        EXPECT_TRUE(outcome.ended);
        EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
    }
}

}  // namespace
}  // namespace gcmoe::group
