// A rank 0 that says what no rank 0 says: nothing of it is believed, and nobody waits for ever.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "group/host_session.hpp"
#include "group/meeting_packets.hpp"
#include "rank_process.hpp"

namespace gcmoe::group {
namespace {

using test::ScratchPath;

constexpr int kRanks = 3;
constexpr int kVisitor = 1;

struct Visit {
    Status status;
    std::vector<int> taken;  // ranks whose memory the visitor was given
    double seconds = 0;
};

// What rank 1 of three makes of a rank 0 that says hello back as `script` wants.
class FakeChair {
  public:
    using Script = std::function<void(const FakeChair&, int socket)>;

    FakeChair() { EXPECT_TRUE(OwnedFolder::open(path_.path(), false, 1, &folder_).ok()); }
    [[nodiscard]] Identity self() const { return {0, kRanks, folder_.token()}; }
    static void say(int socket, const Bytes& bytes, int attached = -1) {
        EXPECT_TRUE(send_packet(socket, bytes, attached, Deadline(1)));
    }
    void welcome(int socket, double left_s = 5) const {
        say(socket, encode_welcome(self(), left_s));
    }
    void peer(int socket, int rank) const {
        const UniqueFd memory(::memfd_create("gcmoe-test", MFD_CLOEXEC));
        say(socket, encode(self(), PeerHandle{rank, "memfd", 4096}), memory.get());
    }
    void agree(int socket) const { say(socket, encode(self(), Agreed{false, 0, 1, {1, 2, 3}})); }

    Visit visit(double wait_s, const Script& script) {
        std::atomic<bool> is_over{false};
        std::thread chair([&] { serve(script, is_over); });
        const auto begin = std::chrono::steady_clock::now();
        Visit visit;
        MeetingAttendee attendee({kVisitor, kRanks, folder_.token()}, path_.path(), true);
        Hello hello;
        hello.subject = "workspace 'w'";
        Agreed agreed;
        const auto take = [&](int rank, const SharedHandle&) { visit.taken.push_back(rank); };
        visit.status = attendee.gather(hello, -1, wait_s, take, &agreed);
        if (visit.status.ok()) visit.status = attendee.start({}, wait_s);
        visit.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        is_over = true;
        chair.join();
        return visit;
    }

  private:
    // Every connection until the visitor has gone; the sockets stay open so long.
    void serve(const Script& script, const std::atomic<bool>& is_over) const {
        std::vector<UniqueFd> sockets;
        while (!is_over) {
            UniqueFd socket;
            EXPECT_TRUE(accept_from(folder_.listener(), &socket).ok());
            if (!socket.is_open()) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                continue;
            }
            Bytes hello;
            UniqueFd handle;
            if (receive_packet(socket.get(), Deadline(1), &hello, &handle) == Received::kPacket) {
                script(*this, socket.get());
            }
            sockets.push_back(std::move(socket));
        }
    }

    ScratchPath path_;
    OwnedFolder folder_;
};

// An index into tables of addresses: out of range it would write beside them.
TEST(FakeChair, MemoryOfARankThatIsNoPeerIsRefused) {
    for (const int rank :
         {-1, -5, kVisitor, kRanks, 72, 10000000, std::numeric_limits<int>::min()}) {
        FakeChair chair;
        const Visit visit = chair.visit(2, [rank](const FakeChair& own, int socket) {
            own.welcome(socket);
            own.peer(socket, rank);
        });
        EXPECT_EQ(visit.status.code(), Code::kBadInput) << visit.status.message();
        EXPECT_NE(visit.status.message().find("sent memory of rank " + std::to_string(rank) + " "),
                  std::string::npos)
            << visit.status.message();
        EXPECT_TRUE(visit.taken.empty()) << rank;
    }
}

// Twice the same rank would count for two.
TEST(FakeChair, MemoryOfARankIsTakenOnce) {
    FakeChair chair;
    const Visit visit = chair.visit(2, [](const FakeChair& own, int socket) {
        own.welcome(socket);
        own.peer(socket, 2);
        own.peer(socket, 2);
    });
    EXPECT_EQ(visit.status.code(), Code::kBadInput) << visit.status.message();
    EXPECT_EQ(visit.taken, std::vector<int>{2});
}

// Each packet of a meeting, changed in one field of its header.
TEST(FakeChair, PacketsOfOthersAreRefused) {
    const std::vector<std::function<void(PacketHeader*)>> changes = {
        [](PacketHeader* header) { ++header->version; },
        [](PacketHeader* header) { header->rank = 2; },
        [](PacketHeader* header) { header->num_ranks = kRanks + 1; },
        [](PacketHeader* header) { header->token.words[0] ^= 1; },
        [](PacketHeader* header) { header->token.words[1] ^= 1; },
        [](PacketHeader* header) { header->kind = 77; },
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
        for (const bool is_peer : {true, false}) {
            FakeChair chair;
            const Visit visit = chair.visit(2, [&](const FakeChair& own, int socket) {
                own.welcome(socket);
                Bytes bytes = is_peer ? encode(own.self(), PeerHandle{2, "memfd", 4096})
                                      : encode(own.self(), Agreed{});
                PacketHeader header;
                EXPECT_TRUE(decode_header(bytes, &header));
                changes[i](&header);
                std::memcpy(bytes.data(), &header, sizeof(header));
                FakeChair::say(socket, bytes);
            });
            EXPECT_EQ(visit.status.code(), Code::kBadInput) << i << visit.status.message();
            EXPECT_TRUE(visit.taken.empty()) << i;
        }
    }
}

// The folder has changed hands between a look at its token and the word of its rank 0.
TEST(FakeChair, OfAnotherSessionIsAskedAgain) {
    FakeChair chair;
    int num_visits = 0;
    const Visit visit = chair.visit(2, [&num_visits](const FakeChair& own, int socket) {
        const Identity other{0, kRanks, {{1, 2}}};
        const Status refusal(Code::kBadInput, "of another session");
        if (num_visits++ == 0) {
            return FakeChair::say(socket, encode_status(other, PacketKind::kVerdict, refusal));
        }
        own.welcome(socket);
        own.agree(socket);
        FakeChair::say(socket, encode_status(own.self(), PacketKind::kVerdict, {}));
    });
    EXPECT_TRUE(visit.status.ok()) << visit.status.message();
    EXPECT_EQ(num_visits, 2);
}

// A chair with too many connections hangs up on who has said nothing yet, its process may end, and
// what it says may be no packet: until it is welcome, a rank comes again.
TEST(FakeChair, ThatHangsUpIsVisitedAgain) {
    FakeChair chair;
    int num_visits = 0;
    const Visit visit = chair.visit(5, [&num_visits](const FakeChair& own, int socket) {
        ++num_visits;
        if (num_visits == 2) FakeChair::say(socket, Bytes(3, 0x55));
        if (num_visits < 4) {
            EXPECT_EQ(::shutdown(socket, SHUT_RDWR), 0);
            return;
        }
        own.welcome(socket);
        own.agree(socket);
        FakeChair::say(socket, encode_status(own.self(), PacketKind::kVerdict, {}));
    });
    EXPECT_TRUE(visit.status.ok()) << visit.status.message();
    EXPECT_EQ(num_visits, 4);
    EXPECT_LT(visit.seconds, 1);
}

// Once it is welcome, its seat is lost with the connection.
TEST(FakeChair, ThatHangsUpAfterItsWelcomeIsNotVisitedAgain) {
    FakeChair chair;
    int num_visits = 0;
    const Visit visit = chair.visit(5, [&num_visits](const FakeChair& own, int socket) {
        ++num_visits;
        own.welcome(socket);
        EXPECT_EQ(::shutdown(socket, SHUT_RDWR), 0);
    });
    EXPECT_EQ(visit.status.code(), Code::kStalled);
    EXPECT_EQ(visit.status.message(), "workspace 'w': rank 0 of 3 left while the ranks met");
    EXPECT_EQ(num_visits, 1);
}

// An answer of another kind is no go-ahead.
TEST(FakeChair, ReadyIsNoVerdict) {
    FakeChair chair;
    const Visit visit = chair.visit(1, [](const FakeChair& own, int socket) {
        own.welcome(socket);
        own.agree(socket);
        FakeChair::say(socket, encode_status(own.self(), PacketKind::kReady, {}));
    });
    EXPECT_EQ(visit.status.code(), Code::kStalled) << visit.status.message();
}

TEST(FakeChair, ThatHasNoTimeLeftIsNotWaitedForForEver) {
    FakeChair chair;
    const Visit visit =
        chair.visit(10, [](const FakeChair& own, int socket) { own.welcome(socket, 0); });
    EXPECT_EQ(visit.status.code(), Code::kStalled);
    EXPECT_EQ(visit.status.message(),
              "workspace 'w': rank 0 of 3 has fallen silent while the ranks met");
    EXPECT_LT(visit.seconds, test::most_seconds(1));
}

TEST(FakeChair, ATimeThatIsNoTimeIsNoWelcome) {
    for (const double left_s : {std::numeric_limits<double>::quiet_NaN(), -1.0,
                                -std::numeric_limits<double>::infinity()}) {
        FakeChair chair;
        const Visit visit = chair.visit(
            0.3, [left_s](const FakeChair& own, int socket) { own.welcome(socket, left_s); });
        EXPECT_EQ(visit.status.code(), Code::kStalled) << left_s;
        EXPECT_NE(visit.status.message().find("has not come within 0.3 s"), std::string::npos)
            << visit.status.message();
    }
}

TEST(DeadlineTest, OnlyZeroAndVeryLongMeanNever) {
    EXPECT_FALSE(Deadline(0).passed());
    EXPECT_FALSE(Deadline(std::numeric_limits<double>::infinity()).passed());
    EXPECT_FALSE(Deadline(60).passed());
    EXPECT_LE(Deadline(60).left_s(), 60);
    for (const double past : {-1e-9, -1.0, -1e300, -std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
        EXPECT_TRUE(Deadline(past).passed()) << past;
    }
}

}  // namespace
}  // namespace gcmoe::group
