// Which SM pairs become whose partition: on maps as a device has them, without a device.
#include "cuda/runtime/sm_shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace gcmoe::cuda::runtime {
namespace {

// An H200: 66 pairs over 8 GPCs, dealt out round robin as the driver does.
std::vector<SmPair> h200_pairs() {
    std::vector<SmPair> pairs;
    const int sizes[] = {9, 9, 8, 8, 8, 8, 8, 8};
    std::map<int, int> made;
    int sm = 0;
    while (pairs.size() < 66) {
        for (int gpc = 0; gpc < 8; ++gpc) {
            if (made[gpc] == sizes[gpc]) continue;
            ++made[gpc];
            pairs.push_back({{sm, sm + 1}, gpc});
            sm += 2;
        }
    }
    return pairs;
}

// Fewest and most pairs that a GPC has in a list.
std::pair<int, int> spread(const std::vector<SmPair>& pairs, const std::vector<int>& list) {
    std::map<int, int> count;
    for (const SmPair& pair : pairs) count[pair.gpc] += 0;
    for (const int i : list) ++count[pairs[static_cast<std::size_t>(i)].gpc];
    int fewest = 1000;
    int most = 0;
    for (const auto& [gpc, n] : count) {
        fewest = std::min(fewest, n);
        most = std::max(most, n);
    }
    return {fewest, most};
}

TEST(SmShares, EveryPairHasOneOwner) {
    const std::vector<SmPair> pairs = h200_pairs();
    const auto expect_one_owner = [&](const ShareSizes& sizes, SmPlacement placement) {
        std::set<int> seen;
        for (const PairShare& share : share_pairs(pairs, sizes, placement)) {
            EXPECT_EQ(share.dispatch.size(), static_cast<std::size_t>(sizes.dispatch_pairs));
            EXPECT_EQ(share.compute.size(), static_cast<std::size_t>(sizes.compute_pairs));
            for (const auto* list : {&share.dispatch, &share.compute}) {
                for (const int i : *list) {
                    EXPECT_TRUE(seen.insert(i).second) << "pair " << i << " twice";
                    EXPECT_LT(i, 66);
                }
            }
        }
    };
    for (const int ranks : {1, 2, 3, 4, 8, 16, 33}) {
        const int each = 66 / ranks;
        for (int dispatch = 1; dispatch < each; ++dispatch) {
            for (const SmPlacement placement :
                 {SmPlacement::kBalanced, SmPlacement::kInOrder, SmPlacement::kByGpc}) {
                expect_one_owner({ranks, dispatch, each - dispatch}, placement);
            }
        }
    }
}

// What is taken for dispatch is missing evenly: no GPC has two pairs less than another for compute.
TEST(SmShares, ComputeLosesEvenly) {
    const std::vector<SmPair> pairs = h200_pairs();
    for (const int dispatch : {2, 4, 8, 10, 16}) {
        const PairShare share =
            share_pairs(pairs, {1, dispatch, 66 - dispatch}, SmPlacement::kBalanced).front();
        const auto [fewest, most] = spread(pairs, share.compute);
        EXPECT_LE(most - fewest, 1) << dispatch << " pairs for dispatch";
    }
}

// A share of virtual ranks lies over the GPCs, too.
TEST(SmShares, SharesLieOverTheGpcs) {
    const std::vector<SmPair> pairs = h200_pairs();
    for (const PairShare& share : share_pairs(pairs, {8, 1, 7}, SmPlacement::kBalanced)) {
        std::vector<int> all = share.compute;
        all.insert(all.end(), share.dispatch.begin(), share.dispatch.end());
        EXPECT_LE(spread(pairs, all).second, 2);
    }
}

// The list as it is, rank by rank: the dispatch partition first.
TEST(SmShares, InOrderTakesTheListAsItIs) {
    const std::vector<PairShare> shares =
        share_pairs(h200_pairs(), {2, 3, 30}, SmPlacement::kInOrder);
    ASSERT_EQ(shares.size(), 2U);
    EXPECT_EQ(shares[0].dispatch, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(shares[0].compute.front(), 3);
    EXPECT_EQ(shares[0].compute.back(), 32);
    EXPECT_EQ(shares[1].dispatch, (std::vector<int>{33, 34, 35}));
    EXPECT_EQ(shares[1].compute.back(), 65);
}

// What the balance is there to avoid: nine pairs for dispatch are the whole of the largest GPC.
TEST(SmShares, ByGpcEmptiesOneGpcAfterTheOther) {
    const std::vector<SmPair> pairs = h200_pairs();
    const PairShare share = share_pairs(pairs, {1, 9, 57}, SmPlacement::kByGpc).front();
    for (const int i : share.dispatch) EXPECT_EQ(pairs[static_cast<std::size_t>(i)].gpc, 0);
    EXPECT_EQ(spread(pairs, share.compute), std::pair(0, 9));
    const PairShare more = share_pairs(pairs, {1, 20, 46}, SmPlacement::kByGpc).front();
    std::map<int, int> taken;
    for (const int i : more.dispatch) ++taken[pairs[static_cast<std::size_t>(i)].gpc];
    EXPECT_EQ(taken, (std::map<int, int>{{0, 9}, {1, 9}, {2, 2}}));
}

// Pairs whose GPC is unknown are a group of their own.
TEST(SmShares, UnknownGpcs) {
    std::vector<SmPair> pairs = h200_pairs();
    for (std::size_t i = 60; i < pairs.size(); ++i) pairs[i].gpc = -1;
    const PairShare share = share_pairs(pairs, {1, 8, 58}, SmPlacement::kBalanced).front();
    EXPECT_EQ(share.dispatch.size() + share.compute.size(), 66U);
}

}  // namespace
}  // namespace gcmoe::cuda::runtime
