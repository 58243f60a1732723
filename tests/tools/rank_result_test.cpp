// What ranks hand to rank 0: nothing that a peer says about its size is believed.
#include "tools/gcmoe/rank_result.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_stream.hpp"
#include "cpu/shared_memory.hpp"
#include "op/refusal.hpp"
#include "processes/rank_process.hpp"

namespace gcmoe::cli {
namespace {

using test::expect_refused;
using test::Outcome;
using test::RankProcess;
using test::ScratchPath;

constexpr int kRanks = 2;
constexpr int kMaxTokens = 4;
constexpr int kNumTokens = 3;

Shape small_shape() {
    Shape shape;
    shape.hidden = 256;
    shape.inter = 128;
    shape.num_experts = 6;
    shape.topk = 2;
    shape.num_ranks = kRanks;
    shape.shared_inter = 256;
    return shape;
}

// What a peer of that shape sends.
RankResult whole_result() {
    RankResult result;
    reference::RankStages& stages = result.stages;
    stages.max_tokens = kMaxTokens;
    stages.num_tokens = kNumTokens;
    const std::size_t slots = kMaxTokens * 2;
    stages.act.resize(slots * kRanks * 128, 1);
    stages.act_scale.resize(slots * kRanks, 2);
    stages.combine.resize(slots * 256, 3);
    stages.shared_act.resize(kMaxTokens * 256, 4);
    stages.shared_act_scale.resize(kMaxTokens * 2, 5);
    stages.shared_row.resize(kMaxTokens * 256, 6);
    stages.y.resize(kNumTokens * 256, 7);
    result.statistics.generation = 8;
    result.statistics.expert_rows = {9, 10, 11};
    result.packed.num_experts = 12;
    result.launch_s = 13.5;
    result.difference = "launch 2 gives";
    return result;
}

constexpr ResultSizes kKnown{kMaxTokens, kNumTokens, true, true};

TEST(ResultSizesTest, AWholeResultPasses) {
    EXPECT_TRUE(check_sizes(small_shape(), kKnown, whole_result()).ok());
    RankResult y_alone;
    y_alone.stages.num_tokens = kNumTokens;
    y_alone.stages.y.resize(kNumTokens * 256);
    EXPECT_TRUE(check_sizes(small_shape(), {kMaxTokens, kNumTokens, false, false}, y_alone).ok());
}

struct Field {
    const char* name;
    std::function<void(RankResult*, int by)> grow;
};

template <class T>
void grow(std::vector<T>* values, int by) {
    values->resize(values->size() + static_cast<std::size_t>(by));
}

TEST(ResultSizesTest, EveryFieldIsCompared) {
    const Field fields[] = {
        {"max_tokens", [](RankResult* r, int by) { r->stages.max_tokens += by; }},
        {"num_tokens", [](RankResult* r, int by) { r->stages.num_tokens += by; }},
        {"act", [](RankResult* r, int by) { grow(&r->stages.act, by); }},
        {"act_scale", [](RankResult* r, int by) { grow(&r->stages.act_scale, by); }},
        {"combine", [](RankResult* r, int by) { grow(&r->stages.combine, by); }},
        {"shared_act", [](RankResult* r, int by) { grow(&r->stages.shared_act, by); }},
        {"shared_act_scale", [](RankResult* r, int by) { grow(&r->stages.shared_act_scale, by); }},
        {"shared_row", [](RankResult* r, int by) { grow(&r->stages.shared_row, by); }},
        {"y", [](RankResult* r, int by) { grow(&r->stages.y, by); }},
        {"expert_rows", [](RankResult* r, int by) { grow(&r->statistics.expert_rows, by); }},
    };
    for (const Field& field : fields) {
        for (const int by : {-1, 1}) {
            RankResult result = whole_result();
            field.grow(&result, by);
            expect_refused(check_sizes(small_shape(), kKnown, result), Code::kBadInput,
                           {std::string("a rank's result: ") + field.name + " is "});
        }
    }
}

TEST(ResultSizesTest, StagesThatNobodyAskedForAreRefused) {
    expect_refused(
        check_sizes(small_shape(), {kMaxTokens, kNumTokens, false, true}, whole_result()),
        Code::kBadInput, {"max_tokens is 4 where this process has 0"});
}

// ---- over a session

HostOptions host(const std::string& folder, int rank) {
    HostOptions options;
    options.session = folder;
    options.rank = rank;
    options.num_ranks = kRanks;
    options.wait_s = 10;
    return options;
}

// Rank 0 in this process gathers what rank 1, another one, does.
Status gather_from(const std::function<Status(group::HostSession*)>& peer,
                   std::vector<RankResult>* all) {
    const ScratchPath folder;
    RankProcess one([&](Outcome* out) {
        std::unique_ptr<group::HostSession> session;
        out->set(group::HostSession::open(host(folder.path(), 1), &session));
        if (out->code == Code::kOk) out->set(peer(session.get()));
    });
    std::unique_ptr<group::HostSession> session;
    GCMOE_RETURN_IF_ERROR(group::HostSession::open(host(folder.path(), 0), &session));
    const auto check = [](int rank, const RankResult& result) {
        EXPECT_EQ(rank, 1);
        return check_sizes(small_shape(), kKnown, result);
    };
    const Status status = gather_results({}, check, session.get(), all);
    const Outcome outcome = one.wait();
    EXPECT_EQ(outcome.code, status.code());
    EXPECT_EQ(outcome.message, status.message()) << "both hear the same";
    return status;
}

// Rank 1's side.
Status send(RankResult result, group::HostSession* session) {
    std::vector<RankResult> none;
    return gather_results(std::move(result), {}, session, &none);
}

TEST(GatherResults, OfAnotherSizeAreRefusedOnBothSides) {
    RankResult result = whole_result();
    result.stages.act.pop_back();
    std::vector<RankResult> all;
    const auto peer = [&](group::HostSession* session) { return send(result, session); };
    expect_refused(gather_from(peer, &all), Code::kBadInput,
                   {"a rank's result: act is 2047 where this process has 2048"});
    EXPECT_TRUE(all.empty());
}

TEST(GatherResults, EveryFieldComesOver) {
    std::vector<RankResult> all;
    const auto peer = [](group::HostSession* session) { return send(whole_result(), session); };
    ASSERT_TRUE(gather_from(peer, &all).ok());
    ASSERT_EQ(all.size(), 2U);
    const RankResult sent = whole_result();
    const RankResult& got = all[1];
    EXPECT_EQ(got.stages.act, sent.stages.act);
    EXPECT_EQ(got.stages.act_scale, sent.stages.act_scale);
    EXPECT_EQ(got.stages.combine, sent.stages.combine);
    EXPECT_EQ(got.stages.shared_act, sent.stages.shared_act);
    EXPECT_EQ(got.stages.shared_act_scale, sent.stages.shared_act_scale);
    EXPECT_EQ(got.stages.shared_row, sent.stages.shared_row);
    EXPECT_EQ(got.stages.y, sent.stages.y);
    EXPECT_EQ(got.statistics.generation, sent.statistics.generation);
    EXPECT_EQ(got.statistics.expert_rows, sent.statistics.expert_rows);
    EXPECT_EQ(got.packed.num_experts, sent.packed.num_experts);
    EXPECT_EQ(got.launch_s, sent.launch_s);
    EXPECT_EQ(got.difference, sent.difference);
}

// A peer of the same user that hands over something else.
TEST(GatherResults, BytesThatAreNoResultAreRefusedOnBothSides) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{100000}}) {
        for (const int byte : {0, 0xFF}) {
            const auto peer = [&](group::HostSession* session) -> Status {
                cpu::SharedMemory memory;
                GCMOE_RETURN_IF_ERROR(cpu::SharedMemory::create(size, &memory));
                std::memset(memory.data(), byte, size);
                group::Offer offer;
                offer.subject = "results";
                GCMOE_RETURN_IF_ERROR(memory.share(&offer.handle));
                offer.configuration = results_configuration();
                return session->meet(
                    std::move(offer), [](int, const SharedHandle&) {},
                    [](const group::Agreement&) { return Status(); });
            };
            std::vector<RankResult> all;
            expect_refused(gather_from(peer, &all), Code::kBadInput,
                           {"a rank's result of " + std::to_string(size) +
                            " bytes is not as long as it says"});
            EXPECT_TRUE(all.empty());
        }
    }
}

}  // namespace
}  // namespace gcmoe::cli
