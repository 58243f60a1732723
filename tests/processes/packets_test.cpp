// What ranks say when they meet, as bytes: nothing that is cut short or garbled is taken for a
// packet, and nobody who sends it disturbs a meeting.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "group/host_session.hpp"
#include "group/meeting_packets.hpp"
#include "group/session_folder.hpp"
#include "group/unix_socket.hpp"
#include "rank_process.hpp"

namespace gcmoe::group {
namespace {

const Identity kSelf{3, 8, {{0x0123456789ABCDEF, 0xFEDCBA9876543210}}};

Hello full_hello() {
    Hello hello;
    hello.pid = 42;
    hello.incarnation = 0x1122334455667788;
    hello.is_reset = true;
    hello.generation = 0xFFFFFFFE;
    hello.session = 7;
    hello.members = {1, 2, 3};
    hello.subject = "workspace 'w'";
    hello.configuration = {{"hidden", "256"}, {"plan", ""}};
    hello.handle_kind = "memfd";
    hello.handle_bytes = std::uint64_t{1} << 40;
    hello.failure = {Code::kUnsupported, "no memory"};
    return hello;
}

TEST(Packets, HelloComesBackWhole) {
    const Bytes bytes = encode(kSelf, full_hello());
    PacketHeader header;
    ASSERT_TRUE(decode_header(bytes, &header));
    EXPECT_EQ(header.rank, 3);
    EXPECT_EQ(header.num_ranks, 8);
    EXPECT_EQ(header.token, kSelf.token);
    Hello out;
    ASSERT_TRUE(decode(bytes, &out));
    const Hello in = full_hello();
    EXPECT_EQ(out.pid, in.pid);
    EXPECT_EQ(out.incarnation, in.incarnation);
    EXPECT_TRUE(out.is_reset);
    EXPECT_FALSE(out.move);
    EXPECT_EQ(out.generation, in.generation);
    EXPECT_EQ(out.session, in.session);
    EXPECT_EQ(out.members, in.members);
    EXPECT_EQ(out.subject, in.subject);
    EXPECT_EQ(out.configuration, in.configuration);
    EXPECT_EQ(out.handle_kind, in.handle_kind);
    EXPECT_EQ(out.handle_bytes, in.handle_bytes);
    EXPECT_EQ(out.failure.code(), in.failure.code());
    EXPECT_EQ(out.failure.message(), in.failure.message());
}

TEST(Packets, EveryCutIsRefusedAndSoIsATail) {
    const Bytes whole = encode(kSelf, full_hello());
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        Hello out;
        EXPECT_FALSE(decode(cut, &out)) << size;
    }
    Bytes longer = whole;
    longer.push_back(0);
    Hello out;
    EXPECT_FALSE(decode(longer, &out));
}

// Lengths inside a packet are not believed.
TEST(Packets, GarbledBytesNeverReadPastTheEnd) {
    const Bytes whole = encode(kSelf, full_hello());
    for (std::size_t at = sizeof(PacketHeader); at < whole.size(); ++at) {
        Bytes garbled = whole;
        std::memset(garbled.data() + at, 0xFF, std::min<std::size_t>(4, whole.size() - at));
        Hello out;
        (void)decode(garbled, &out);  // under the address sanitizer: no read outside
        EXPECT_LE(out.configuration.size(), whole.size());
    }
}

TEST(Packets, OneKindIsNotTakenForAnother) {
    const Bytes welcome = encode_welcome(kSelf, 1.5);
    double left_s = 0;
    EXPECT_TRUE(decode_welcome(welcome, &left_s));
    EXPECT_EQ(left_s, 1.5);
    Hello hello;
    Agreed agreed;
    PeerHandle peer;
    Status status;
    EXPECT_FALSE(decode(welcome, &hello));
    EXPECT_FALSE(decode(welcome, &agreed));
    EXPECT_FALSE(decode(welcome, &peer));
    EXPECT_FALSE(decode_status(welcome, PacketKind::kVerdict, &status));
    const Bytes verdict = encode_status(kSelf, PacketKind::kVerdict, {Code::kStalled, "why"});
    ASSERT_TRUE(decode_status(verdict, PacketKind::kVerdict, &status));
    EXPECT_EQ(status.code(), Code::kStalled);
    EXPECT_EQ(status.message(), "why");
    EXPECT_FALSE(decode_welcome(verdict, &left_s));
    EXPECT_FALSE(decode(verdict, &hello));
}

HostOptions host(const std::string& session, int rank) {
    HostOptions options;
    options.session = session;
    options.rank = rank;
    options.num_ranks = 2;
    options.wait_s = 10;
    return options;
}

Status meet_alone(HostSession* session) {
    Offer offer;
    offer.subject = "workspace 'w'";
    return session->meet(
        std::move(offer), [](int, const SharedHandle&) {},
        [](const Agreement&) { return Status(); });
}

// A stranger of the same user who sends one packet to the chair; what it answers.
Bytes answer_to(const std::string& folder, const Bytes& packet) {
    const UniqueFd socket = connect_to(socket_path(folder));
    EXPECT_TRUE(socket.is_open());
    EXPECT_TRUE(send_packet(socket.get(), packet, -1, Deadline(1)));
    Bytes answer;
    UniqueFd none;
    if (receive_packet(socket.get(), Deadline(5), &answer, &none) != Received::kPacket) return {};
    return answer;
}

// A rank that gave up before the chair was there has left its hello behind; it comes again.
TEST(Resends, AHelloWhoseSenderHasGoneIsNotSeated) {
    const test::ScratchPath folder;
    std::unique_ptr<HostSession> zero;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 0), &zero).ok());
    std::unique_ptr<HostSession> one;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 1), &one).ok());
    Token token;
    ASSERT_TRUE(find_session(folder.path(), Deadline(5), &token).ok());
    {
        const UniqueFd before = connect_to(socket_path(folder.path()));
        ASSERT_TRUE(send_packet(before.get(), encode(Identity{1, 2, token}, full_hello()), -1,
                                Deadline(1)));
    }
    Status of_one(Code::kInternal, "not run");
    std::thread attendee([&] { of_one = meet_alone(one.get()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // both hellos wait
    const Status of_zero = meet_alone(zero.get());
    attendee.join();
    EXPECT_TRUE(of_zero.ok()) << of_zero.message();
    EXPECT_TRUE(of_one.ok()) << of_one.message();
}

TEST(Strangers, DoNotDisturbAMeeting) {
    const test::ScratchPath folder;
    std::unique_ptr<HostSession> zero;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 0), &zero).ok());
    Status of_zero(Code::kInternal, "not run");
    std::thread chair([&] { of_zero = meet_alone(zero.get()); });

    EXPECT_TRUE(answer_to(folder.path(), Bytes(100, 0x55)).empty()) << "hung up on";
    EXPECT_TRUE(answer_to(folder.path(), Bytes(kMostPacketBytes, 0)).empty());
    Status refusal;
    const Identity of_old_session{1, 2, {{1, 2}}};
    ASSERT_TRUE(decode_status(answer_to(folder.path(), encode(of_old_session, full_hello())),
                              PacketKind::kVerdict, &refusal));
    EXPECT_EQ(refusal.code(), Code::kBadInput);
    EXPECT_NE(refusal.message().find("rank 1 is refused: process 42 belongs to another session"),
              std::string::npos);
    const UniqueFd silent = connect_to(socket_path(folder.path()));

    std::unique_ptr<HostSession> one;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 1), &one).ok());
    const Status of_one = meet_alone(one.get());
    chair.join();
    EXPECT_TRUE(of_zero.ok()) << of_zero.message();
    EXPECT_TRUE(of_one.ok()) << of_one.message();
}

// Opens descriptors until the process has only `left` more.
std::vector<UniqueFd> use_up_descriptors(int left) {
    std::vector<UniqueFd> all;
    const rlimit most{200, 200};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &most), 0);
    for (;;) {
        UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!one.is_open()) break;
        all.push_back(std::move(one));
    }
    all.resize(all.size() - static_cast<std::size_t>(left));
    return all;
}

// Rank 0 with few descriptors left, and connections that never say a word.
test::Outcome chair_besieged(int left, int num_silent, bool rank_1_comes, double* seconds) {
    const test::ScratchPath folder;
    test::SharedBoard board;
    test::RankProcess zero([&](test::Outcome* out) {
        std::unique_ptr<HostSession> session;
        out->set(HostSession::open(host(folder.path(), 0), &session));
        const std::vector<UniqueFd> used = use_up_descriptors(left);
        board->go[0] = 1;
        test::SharedBoard::wait(board->go[1], 1);
        if (out->code == Code::kOk) out->set(meet_alone(session.get()));
    });
    EXPECT_TRUE(test::SharedBoard::wait(board->go[0], 1));
    std::vector<UniqueFd> silent;
    for (int i = 0; i < num_silent; ++i) silent.push_back(connect_to(socket_path(folder.path())));
    const auto begin = std::chrono::steady_clock::now();
    board->go[1] = 1;
    std::unique_ptr<HostSession> one;
    if (rank_1_comes) {
        EXPECT_TRUE(HostSession::open(host(folder.path(), 1), &one).ok());
        const Status status = meet_alone(one.get());
        EXPECT_TRUE(status.ok()) << status.message();
    }
    test::Outcome outcome = zero.wait();
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return outcome;
}

TEST(Strangers, ThatSayNothingGiveWayToRanks) {
    for (const int left : {5, 190}) {
        double seconds = 0;
        const test::Outcome outcome = chair_besieged(left, 300, true, &seconds);
        EXPECT_TRUE(outcome.ended) << left;
        EXPECT_EQ(outcome.code, Code::kOk) << left << ": " << outcome.message;
    }
}

TEST(Strangers, WithoutDescriptorsTheChairSaysSoAtOnce) {
    double seconds = 0;
    const test::Outcome outcome = chair_besieged(0, 1, false, &seconds);
    EXPECT_EQ(outcome.code, Code::kUnsupported);
    EXPECT_EQ(outcome.message, "workspace 'w': a connection cannot be taken: Too many open files");
    EXPECT_LT(seconds, test::most_seconds(0));
}

// The kernel's word for who is at the other end, where a folder's mode does not keep others out.
TEST(Sockets, OfAnotherUserAreClosedOnBothSides) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    const test::ScratchPath folder;
    ASSERT_EQ(::mkdir(folder.path().c_str(), 0755), 0);
    const std::string path = socket_path(folder.path());
    UniqueFd listener;
    ASSERT_TRUE(listen_at(path, &listener).ok());
    ASSERT_EQ(::chmod(path.c_str(), 0777), 0);
    for (const uid_t user : {uid_t{0}, uid_t{65534}}) {
        test::RankProcess process([&](test::Outcome* out) {
            if (::setresuid(user, user, user) != 0) ::raise(SIGKILL);
            const bool is_open = connect_to(path).is_open();
            out->set(is_open ? Status() : Status(Code::kUnsupported, "not the same user"));
        });
        const test::Outcome outcome = process.wait(5);
        EXPECT_EQ(outcome.code, user == 0 ? Code::kOk : Code::kUnsupported) << user;
        UniqueFd socket;
        ASSERT_TRUE(accept_from(listener.get(), &socket).ok());
        EXPECT_EQ(socket.is_open(), user == 0) << user;
    }
}

// A process that was replaced and has woken up, its replacement (new to the workspace, whose
// session is the start value), and a member of the session that is.
TEST(Seats, OfAReplacementAreNotTakenByAWokenProcess) {
    const auto of_session = [](bool is_reset, std::uint32_t session) {
        Hello hello;
        hello.is_reset = is_reset;
        hello.session = session;
        return hello;
    };
    const Hello replacement = of_session(false, 1);
    const Hello woken = of_session(true, 3);
    const Hello member = of_session(true, 4);
    EXPECT_FALSE(takes_place_of(woken, replacement));
    EXPECT_FALSE(takes_place_of(member, replacement));
    EXPECT_FALSE(takes_place_of(replacement, woken));
    EXPECT_FALSE(takes_place_of(woken, member));
    EXPECT_FALSE(takes_place_of(member, member));
    EXPECT_TRUE(takes_place_of(member, woken));
    EXPECT_TRUE(takes_place_of(of_session(true, 1), of_session(true, 0xFFFFFFFFU)));  // wraps
}

TEST(Strangers, AnotherWireVersionIsNamedToBoth) {
    const test::ScratchPath folder;
    std::unique_ptr<HostSession> zero;
    ASSERT_TRUE(HostSession::open(host(folder.path(), 0), &zero).ok());
    Status of_zero;
    std::thread chair([&] { of_zero = meet_alone(zero.get()); });
    Token token;
    ASSERT_TRUE(find_session(folder.path(), Deadline(5), &token).ok());
    Bytes newer = encode(Identity{1, 2, token}, Hello{});
    PacketHeader header;
    ASSERT_TRUE(decode_header(newer, &header));
    header.version = kWireVersion + 1;
    std::memcpy(newer.data(), &header, sizeof(header));
    Status of_newer;
    ASSERT_TRUE(decode_status(answer_to(folder.path(), newer), PacketKind::kVerdict, &of_newer));
    chair.join();
    EXPECT_EQ(of_zero.code(), Code::kBadConfig);
    EXPECT_EQ(of_zero.message(),
              "workspace 'w': ranks differ: wire version = 2 on rank 0 but wire "
              "version = 3 on rank 1");
    EXPECT_EQ(of_newer.message(), of_zero.message());
}

}  // namespace
}  // namespace gcmoe::group
