// Who is a newcomer: a process that was replaced, and has woken up when its replacement is lost,
// is one too. Memory of the session before may be used again only without any.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "group/host_session.hpp"
#include "rank_process.hpp"

namespace gcmoe::group {
namespace {

using test::Outcome;
using test::RankProcess;
using test::ScratchPath;
using test::SharedBoard;

constexpr int kRanks = 3;
constexpr const char* kRefusal =
    "workspace 'w': a reset without move uses memory again, and rank 2 is another process than in "
    "the session before: the lost one may still write there; reset with move on all ranks";

// One process of a rank, and how its meetings end: a word each.
class Member {
  public:
    Member(const std::string& folder, int rank) {
        HostOptions options;
        options.session = folder;
        options.rank = rank;
        options.num_ranks = kRanks;
        options.wait_s = 10;
        if (!HostSession::open(options, &session_).ok()) words_ = "no session ";
    }
    void join() { meet(false, false); }
    void reset(bool move) { meet(true, move); }
    [[nodiscard]] const std::string& words() const { return words_; }

  private:
    void meet(bool is_reset, bool move) {
        Offer offer;
        offer.subject = "workspace 'w'";
        offer.is_reset = is_reset;
        offer.move = move;
        offer.session = last_;
        const Status status = session_->meet(
            std::move(offer), [](int, const SharedHandle&) {},
            [this](const Agreement& agreement) {
                last_ = agreement.session;
                return Status();
            });
        words_ += status.ok()                    ? "ok "
                  : status.message() == kRefusal ? "refused "
                                                 : status.message();
    }

    std::unique_ptr<HostSession> session_;
    std::uint32_t last_ = 1;
    std::string words_;
};

// Rank 2 is a2, then b2 in its place, then a2 again. b2 may still write into what the others have
// now, so that no reset with a2 may use that memory again, however often they try.
TEST(Incarnations, AWokenProcessIsANewcomerAfterItsReplacement) {
    const ScratchPath folder;
    SharedBoard board;
    constexpr int kTries = 3;
    const auto after_the_loss = [](Member* member) {
        for (int i = 0; i < kTries; ++i) member->reset(false);
        member->reset(true);
        member->reset(false);
    };
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        ranks.emplace_back([&, rank](Outcome* out) {
            Member member(folder.path(), rank);
            member.join();
            member.reset(true);  // with b2
            after_the_loss(&member);
            out->message = member.words();
        });
    }
    RankProcess a2([&](Outcome* out) {
        Member member(folder.path(), 2);
        member.join();
        board->go[0] = 1;
        SharedBoard::wait(board->go[1], 1);
        after_the_loss(&member);
        board->go[2] = 1;
        out->message = member.words();
    });
    RankProcess b2([&](Outcome* out) {
        SharedBoard::wait(board->go[0], 1);
        Member member(folder.path(), 2);
        member.join();
        board->go[1] = 1;
        SharedBoard::wait(board->go[2], 1);
        out->message = member.words();
    });
    EXPECT_EQ(b2.wait().message, "ok ");
    EXPECT_EQ(a2.wait().message, "ok refused refused refused ok ok ");
    for (RankProcess& rank : ranks) {
        EXPECT_EQ(rank.wait().message, "ok ok refused refused refused ok ok ");
    }
}

}  // namespace
}  // namespace gcmoe::group
