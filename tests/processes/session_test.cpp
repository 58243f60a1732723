// How ranks in processes find each other, or hear why not: all the same sentence, in bounded time.
//   build/cpu/tests/test_processes --gtest_filter='Rendezvous*' | grep '^|'
// prints the rows of docs/processes.md about meetings.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>

#include "group/host_session.hpp"
#include "op/refusal.hpp"
#include "process_layer.hpp"

namespace gcmoe {
namespace {

using namespace test;

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void print_row(const char* fault, const char* phase, const char* named, double seconds) {
    std::printf("| %s | %s | all others stall | %s | %.2f |\n", fault, phase, named, seconds);
}

HostOptions host(const std::string& session, int rank, int num_ranks, double wait_s) {
    HostOptions options;
    options.session = session;
    options.rank = rank;
    options.num_ranks = num_ranks;
    options.wait_s = wait_s;
    return options;
}

// Meets without a layer; between the agreement and the start, `prepare` runs.
Status meet(group::HostSession* session, group::Offer offer,
            const std::function<void()>& prepare = {}) {
    offer.subject = "workspace 'w'";
    return session->meet(
        std::move(offer), [](int, const SharedHandle&) {},
        [&prepare](const group::Agreement&) {
            if (prepare) prepare();
            return Status();
        });
}

// One rank that comes and meets.
Status come(const HostOptions& options, group::Offer offer,
            const std::function<void()>& prepare = {}) {
    std::unique_ptr<group::HostSession> session;
    GCMOE_RETURN_IF_ERROR(group::HostSession::open(options, &session));
    return meet(session.get(), std::move(offer), prepare);
}

// ---- what ranks must agree on

struct Difference {
    std::string name;
    std::function<void(Shape*, OperatorOptions*)> change;  // of rank 2 of three
    std::string words;
};

void PrintTo(const Difference& difference, std::ostream* out) { *out << difference.name; }

class Mismatch : public testing::TestWithParam<Difference> {};

TEST_P(Mismatch, EveryProcessHearsTheSameSentence) {
    const Shape shape = process_shape(3);
    Shape other = shape;
    OperatorOptions other_options = process_options();
    GetParam().change(&other, &other_options);
    pack_before_fork(shape);
    pack_before_fork(other);
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&](Outcome* out) {
            RankSide side(rank == 2 ? other : shape, rank, session.path());
            if (rank == 2) side.options = other_options;
            (void)side.run(1, out);
            side.leave();
        });
    }
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        EXPECT_TRUE(outcome.ended);
        EXPECT_EQ(outcome.code, Code::kBadConfig);
        EXPECT_EQ(outcome.message, "workspace 'default': ranks differ: " + GetParam().words);
        EXPECT_EQ(outcome.leaks, "");
    }
    EXPECT_FALSE(session.exists());
}

using S = Shape;
using O = OperatorOptions;

std::vector<Difference> differences() {
    return {
        {"Hidden", [](S* s, O*) { s->hidden = 384; },
         "hidden = 256 on ranks 0 and 1 but hidden = 384 on rank 2"},
        {"Inter", [](S* s, O*) { s->inter = 128; },
         "inter = 256 on ranks 0 and 1 but inter = 128 on rank 2"},
        {"Experts", [](S* s, O*) { s->num_experts = 12; },
         "num_experts = 24 on ranks 0 and 1 but num_experts = 12 on rank 2"},
        {"Topk", [](S* s, O*) { s->topk = 2; }, "topk = 4 on ranks 0 and 1 but topk = 2 on rank 2"},
        {"Shared", [](S* s, O*) { s->shared_inter = 0; },
         "shared_inter = 128 on ranks 0 and 1 but shared_inter = 0 on rank 2"},
        {"Clamp", [](S* s, O*) { s->activation.clamp = 7; },
         "activation.clamp = 10 on ranks 0 and 1 but activation.clamp = 7 on rank 2"},
        {"MaxTokens", [](S*, O* o) { o->max_tokens = 6; },
         "max_tokens = 5 on ranks 0 and 1 but max_tokens = 6 on rank 2"},
        {"IndexType", [](S*, O* o) { o->index_type = IndexType::kInt32; },
         "index_type = int64 on ranks 0 and 1 but index_type = int32 on rank 2"},
        {"RingDepth", [](S*, O* o) { o->plans.front().ring_blocks = 4; },
         "default.ring_blocks = 2 on ranks 0 and 1 but default.ring_blocks = 4 on rank 2"},
        {"Plan", [](S*, O* o) { o->plans.front().name = "decode"; },
         "plan = default on ranks 0 and 1 but plan = decode on rank 2"},
        {"Session", [](S*, O* o) { o->start.session = 9; },
         "start.session = 1 on ranks 0 and 1 but start.session = 9 on rank 2"},
    };
}
std::string difference_name(const testing::TestParamInfo<Difference>& param) {
    return param.param.name;
}
INSTANTIATE_TEST_SUITE_P(Fields, Mismatch, testing::ValuesIn(differences()), difference_name);

TEST(Meeting, AnotherNumberOfRanksIsNamedToAll) {
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (const auto& [rank, num_ranks] : {std::pair{0, 3}, {1, 3}, {2, 4}, {3, 4}}) {
        ranks.emplace_back([&, rank = rank, num_ranks = num_ranks](Outcome* out) {
            out->set(come(host(session.path(), rank, num_ranks, 10), {}));
        });
    }
    const double begin = now_s();
    std::vector<std::string> messages;
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        EXPECT_EQ(outcome.code, Code::kBadConfig) << outcome.message;
        messages.push_back(outcome.message);
    }
    EXPECT_LT(now_s() - begin, 5) << "nobody waits for the limit";
    EXPECT_NE(messages[0].find("num_ranks = 3 on rank 0 but num_ranks = 4 on rank"),
              std::string::npos)
        << messages[0];
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
}

// An operator, and a rank of another build. The version is the first field that is compared.
TEST(Meeting, AnotherVersionIsNamedToAll) {
    const Shape shape = process_shape(2);
    pack_before_fork(shape);
    const ScratchPath session;
    RankProcess zero([&](Outcome* out) {
        RankSide side(shape, 0, session.path());
        side.options.workspace = "w";
        (void)side.run(1, out);
        side.leave();
    });
    RankProcess one([&](Outcome* out) {
        group::Offer offer;
        offer.configuration = {{"version", "77"}};
        out->set(come(host(session.path(), 1, 2, 10), std::move(offer)));
    });
    for (RankProcess* rank : {&zero, &one}) {
        EXPECT_EQ(rank->wait().message,
                  "workspace 'w': ranks differ: version = 1 on rank 0 but version = 77 on rank 1");
    }
}

// Who cannot take part comes all the same, so that nobody waits for it.
TEST(Meeting, AFailureThatARankBringsIsToldToAll) {
    for (const int failed : {0, 2}) {
        const ScratchPath session;
        std::vector<RankProcess> ranks;
        const double begin = now_s();
        for (int rank = 0; rank < 3; ++rank) {
            ranks.emplace_back([&, rank](Outcome* out) {
                group::Offer offer;
                if (rank == failed) offer.failure = {Code::kUnsupported, "no memory"};
                out->set(come(host(session.path(), rank, 3, 10), std::move(offer)));
            });
        }
        for (RankProcess& rank : ranks) {
            const Outcome outcome = rank.wait();
            EXPECT_EQ(outcome.code, Code::kUnsupported);
            EXPECT_EQ(outcome.message,
                      "workspace 'w': rank " + std::to_string(failed) + ": no memory");
        }
        EXPECT_LT(now_s() - begin, most_seconds(0));
    }
}

TEST(Meeting, ALongConfigurationIsRefusedWithItsSize) {
    const ScratchPath session;
    RankProcess zero([&](Outcome* out) { out->set(come(host(session.path(), 0, 2, 1), {})); });
    group::Offer offer;
    offer.configuration = {{"plan", std::string(70000, 'p')}};
    const double begin = now_s();
    expect_refused(come(host(session.path(), 1, 2, 10), std::move(offer)), Code::kBadInput,
                   {"workspace 'w'", "rank 1 makes a packet of 70", "at most 65536"});
    EXPECT_LT(now_s() - begin, most_seconds(0));
    EXPECT_EQ(zero.wait().code, Code::kStalled);
}

// ---- who does not come, and who goes

TEST(Rendezvous, RankThatNeverComesIsNamedToAll) {
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    const double begin = now_s();
    for (const int rank : {0, 1, 4}) {
        ranks.emplace_back(
            [&, rank](Outcome* out) { out->set(come(host(session.path(), rank, 5, 1), {})); });
    }
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        EXPECT_EQ(outcome.code, Code::kStalled);
        EXPECT_EQ(outcome.message, "workspace 'w': ranks 2 and 3 of 5 have not come within 1 s");
    }
    EXPECT_LT(now_s() - begin, 1.5);
    EXPECT_FALSE(session.exists());
    print_row("never comes", "meeting", "ranks 2 and 3", now_s() - begin);
}

TEST(Rendezvous, RankZeroThatNeverComesIsNamed) {
    const ScratchPath session;
    const double begin = now_s();
    expect_refused(come(host(session.path(), 1, 2, 1), {}), Code::kStalled,
                   {"rank 0 of 2", "has not come within 1 s", session.path()});
    EXPECT_LT(now_s() - begin, most_seconds(1));
    print_row("never comes", "meeting, rank 0", "rank 0", now_s() - begin);
}

// A rank that died waiting for the others.
TEST(Rendezvous, RankThatDiesWhileItWaitsIsNamedToAll) {
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    SharedBoard board;
    for (const int rank : {0, 1, 2}) {
        ranks.emplace_back([&, rank](Outcome* out) {
            if (rank == 2) SharedBoard::wait(board->go[0], 1);
            out->set(come(host(session.path(), rank, 3, 10), {}));
        });
    }
    ::usleep(200000);
    ranks[1].signal(SIGKILL);
    ::usleep(100000);
    board->go[0] = 1;
    const double begin = now_s();
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
        const Outcome outcome = ranks[rank].wait();
        EXPECT_EQ(outcome.code, Code::kStalled);
        EXPECT_EQ(outcome.message, "workspace 'w': rank 1 of 3 left while the ranks met");
    }
    EXPECT_LT(now_s() - begin, most_seconds(0));
    print_row("kill -9", "meeting, waits for the last rank", "rank 1", now_s() - begin);
}

// Everybody has come, and one is struck before all are ready.
void strike_before_start(int victim, int signal, const std::string& words) {
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            const auto strike = [&] {
                if (rank == victim) ::raise(signal);
            };
            out->set(come(host(session.path(), rank, 3, 1), {}, strike));
        });
    }
    const double begin = now_s();
    for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        const Outcome outcome = ranks[static_cast<std::size_t>(rank)].wait();
        EXPECT_EQ(outcome.code, Code::kStalled);
        EXPECT_EQ(outcome.message,
                  "workspace 'w': rank " + std::to_string(victim) + " of 3 " + words);
    }
    EXPECT_LT(now_s() - begin, most_seconds(1));
    const std::string phase =
        std::string("meeting, maps the heaps") + (victim == 0 ? ", rank 0" : "");
    print_row(signal == SIGKILL ? "kill -9" : "SIGSTOP", phase.c_str(),
              victim == 0 ? "rank 0" : "rank 1", now_s() - begin);
}

TEST(Rendezvous, RankThatDiesBeforeTheStartIsNamedToAll) {
    for (const int victim : {0, 1}) {
        strike_before_start(victim, SIGKILL, "left while the ranks met");
    }
}

TEST(Rendezvous, RankThatIsStoppedBeforeTheStartIsNamedToAll) {
    strike_before_start(1, SIGSTOP, "did not get ready in time");
    strike_before_start(0, SIGSTOP, "has fallen silent while the ranks met");
}

TEST(Rendezvous, SecondProcessOfARankIsRefusedAndTheOthersGoOn) {
    const ScratchPath session;
    std::vector<RankProcess> ranks;
    for (const int rank : {0, 1, 1, 2}) {
        ranks.emplace_back([&, rank](Outcome* out) {
            if (rank == 2) ::usleep(300000);
            out->set(come(host(session.path(), rank, 3, 10), {}));
        });
    }
    int good = 0;
    for (RankProcess& rank : ranks) {
        const Outcome outcome = rank.wait();
        if (outcome.code == Code::kOk) ++good;
        if (outcome.code != Code::kOk) {
            EXPECT_NE(outcome.message.find("rank 1 is refused: process "), std::string::npos)
                << outcome.message;
        }
    }
    EXPECT_EQ(good, 3);
}

// ---- the folder

class Folder : public testing::Test {
  protected:
    // Both sides of a session must refuse it.
    void expect_both_refuse(const std::vector<std::string>& words) {
        for (const int rank : {0, 1}) {
            expect_refused(come(host(session_.path(), rank, 2, 0.2), {}), Code::kBadInput, words);
        }
    }
    ScratchPath session_;
};

TEST_F(Folder, OtherModesAreRefused) {
    for (const mode_t mode : {0755, 0750, 0701, 0600, 0500, 01700}) {
        std::filesystem::remove_all(session_.path());
        ASSERT_EQ(::mkdir(session_.path().c_str(), 0700), 0);
        ASSERT_EQ(::chmod(session_.path().c_str(), mode), 0);
        char text[16];
        std::snprintf(text, sizeof(text), "mode %04o,", mode);
        const bool is_usable = (mode & 0700) == 0700;
        expect_both_refuse({session_.path(), text, "not 0700",
                            is_usable ? "others could reach" : "its owner cannot use it"});
        EXPECT_TRUE(session_.exists()) << "nothing of somebody else's is removed";
    }
}

TEST_F(Folder, LinksAndFilesAreRefused) {
    std::filesystem::create_directory_symlink("/tmp", session_.path());
    expect_both_refuse({session_.path(), "is no folder"});
    std::filesystem::remove(session_.path());
    std::ofstream(session_.path()) << "mine";
    expect_both_refuse({session_.path(), "is no folder"});
}

// A slash at the end makes the kernel follow a link; the same name without it does not exist, and
// cannot be made.
TEST_F(Folder, LinksWithASlashAreRefused) {
    for (const char* target : {"/tmp", "/nonexistent/session"}) {
        std::filesystem::create_directory_symlink(target, session_.path());
        for (const char* slashes : {"/", "//"}) {
            for (const int rank : {0, 1}) {
                RankProcess process([&](Outcome* out) {
                    out->set(come(host(session_.path() + slashes, rank, 2, 0.2), {}));
                });
                const Outcome outcome = process.wait(5);
                EXPECT_EQ(outcome.code, Code::kBadInput) << target << slashes << rank;
                EXPECT_NE(outcome.message.find("is no folder"), std::string::npos)
                    << outcome.message;
            }
        }
        std::filesystem::remove(session_.path());
    }
}

TEST_F(Folder, SlashesAtTheEndNameTheSameFolder) {
    RankProcess zero(
        [&](Outcome* out) { out->set(come(host(session_.path() + "//", 0, 2, 5), {})); });
    RankProcess one([&](Outcome* out) { out->set(come(host(session_.path(), 1, 2, 5), {})); });
    EXPECT_EQ(zero.wait().code, Code::kOk);
    EXPECT_EQ(one.wait().code, Code::kOk);
    EXPECT_FALSE(session_.exists());
}

// The mode that a parent or the umask gives to what is made there is not the user's doing.
TEST_F(Folder, ParentsAndMasksDoNotMatter) {
    ASSERT_EQ(::mkdir(session_.path().c_str(), 0700), 0);
    ASSERT_EQ(::chmod(session_.path().c_str(), 02775), 0);
    const std::string path = session_.path() + "/inner";
    for (const mode_t mask : {0, 022, 0177, 0277}) {
        RankProcess zero([&](Outcome* out) {
            ::umask(mask);
            out->set(come(host(path, 0, 2, 5), {}));
        });
        RankProcess one([&](Outcome* out) { out->set(come(host(path, 1, 2, 5), {})); });
        const Outcome outcome = zero.wait();
        EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
        EXPECT_EQ(one.wait().code, Code::kOk);
        EXPECT_FALSE(std::filesystem::exists(path));
    }
}

TEST_F(Folder, OfAnotherUserIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    ASSERT_EQ(::mkdir(session_.path().c_str(), 0700), 0);
    ASSERT_EQ(::chown(session_.path().c_str(), 12345, 12345), 0);
    expect_both_refuse({session_.path(), "belongs to user 12345, not to user 0"});
}

TEST_F(Folder, LongPathsAreRefused) {
    const std::string path = session_.path() + std::string(120, 'x');
    expect_refused(come(host(path, 0, 1, 1), {}), Code::kBadInput, {path, "107"});
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Folder, MissingParentIsRefused) {
    expect_refused(come(host("/nonexistent/session", 0, 1, 1), {}), Code::kBadInput,
                   {"/nonexistent/session", "cannot be made"});
}

TEST_F(Folder, OfALiveSessionIsRefused) {
    std::unique_ptr<group::HostSession> first;
    ASSERT_TRUE(group::HostSession::open(host(session_.path(), 0, 2, 1), &first).ok());
    expect_refused(come(host(session_.path(), 0, 2, 1), {}), Code::kBadInput,
                   {session_.path(), "live session", std::to_string(::getpid())});
    first.reset();
    EXPECT_FALSE(session_.exists());
    EXPECT_TRUE(come(host(session_.path(), 0, 1, 1), {}).ok());
}

TEST_F(Folder, WhatADeadSessionLeftIsReplaced) {
    RankProcess dead([&](Outcome*) {
        std::unique_ptr<group::HostSession> session;
        (void)group::HostSession::open(host(session_.path(), 0, 2, 1), &session);
        ::raise(SIGKILL);
    });
    EXPECT_FALSE(dead.wait().ended);
    ASSERT_TRUE(std::filesystem::exists(session_.path() + "/rank0"));
    RankProcess one([&](Outcome* out) {
        out->set(come(host(session_.path(), 1, 2, 5), {}));  // comes first, to a dead socket
    });
    ::usleep(100000);
    RankProcess zero([&](Outcome* out) { out->set(come(host(session_.path(), 0, 2, 5), {})); });
    EXPECT_EQ(zero.wait().code, Code::kOk);
    const Outcome outcome = one.wait();
    EXPECT_EQ(outcome.code, Code::kOk) << outcome.message;
    EXPECT_FALSE(session_.exists());
}

TEST_F(Folder, FilesOfTheUserStay) {
    ASSERT_EQ(::mkdir(session_.path().c_str(), 0700), 0);
    std::ofstream(session_.path() + "/notes") << "mine";
    EXPECT_TRUE(come(host(session_.path(), 0, 1, 1), {}).ok());
    EXPECT_TRUE(std::filesystem::exists(session_.path() + "/notes"));
    EXPECT_FALSE(std::filesystem::exists(session_.path() + "/token"));
}

// Names that a session uses, in a folder where the user keeps something else under them.
TEST_F(Folder, FilesOfTheUserAreNotTakenForASessions) {
    for (const char* name : {"token", "token.new", "rank0"}) {
        ASSERT_EQ(::mkdir(session_.path().c_str(), 0700), 0);
        const std::string file = session_.path() + "/" + name;
        std::ofstream(file) << "API-KEY\n";
        RankProcess process(
            [&](Outcome* out) { out->set(come(host(session_.path(), 0, 2, 0.2), {})); });
        const Outcome outcome = process.wait(5);
        EXPECT_EQ(outcome.code, Code::kBadInput) << name;
        EXPECT_NE(outcome.message.find("which no session has written"), std::string::npos)
            << outcome.message;
        std::ifstream kept(file);
        std::string text;
        std::getline(kept, text);
        EXPECT_EQ(text, "API-KEY") << name;
        std::filesystem::remove_all(session_.path());
    }
}

TEST_F(Folder, TokenIsPrivateAndNewForEverySession) {
    std::string tokens[2];
    for (std::string& token : tokens) {
        std::unique_ptr<group::HostSession> session;
        ASSERT_TRUE(group::HostSession::open(host(session_.path(), 0, 1, 1), &session).ok());
        struct stat info {};
        ASSERT_EQ(::stat((session_.path() + "/token").c_str(), &info), 0);
        EXPECT_EQ(info.st_mode & 0777, 0600U);
        std::ifstream(session_.path() + "/token") >> token;
        EXPECT_EQ(token.size(), 32U);
    }
    EXPECT_NE(tokens[0], tokens[1]);
}

// ---- options

TEST(HostOptionsTest, EveryRefusalNamesTheField) {
    const auto refused = [](const HostOptions& options, const std::vector<std::string>& words) {
        std::shared_ptr<Group> group;
        expect_refused(Group::join_host(options, &group), Code::kBadConfig, words);
        EXPECT_EQ(group, nullptr);
    };
    refused(host("/tmp/x", 0, 0, 1), {"num_ranks = 0", "1..72"});
    refused(host("/tmp/x", 0, 73, 1), {"num_ranks = 73", "1..72"});
    refused(host("/tmp/x", 2, 2, 1), {"rank = 2", "0..1"});
    refused(host("/tmp/x", -1, 2, 1), {"rank = -1"});
    refused(host("/tmp/x", 0, 2, -1), {"wait_s = -1"});
    refused(host("", 0, 2, 1), {"session"});
}

}  // namespace
}  // namespace gcmoe
