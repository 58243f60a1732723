#include "cuda/runtime/sm_shares.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

namespace gcmoe::cuda::runtime {
namespace {

using PairsOfGpc = std::map<int, std::vector<int>>;

PairsOfGpc by_gpc(const std::vector<SmPair>& pairs, const std::vector<int>& chosen) {
    PairsOfGpc groups;
    for (const int i : chosen) groups[pairs[static_cast<std::size_t>(i)].gpc].push_back(i);
    return groups;
}

std::vector<int> as_listed(const std::vector<SmPair>& pairs) {
    std::vector<int> all(pairs.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
}

// One pair of each GPC in turn until none is left.
std::vector<int> interleave(const std::vector<SmPair>& pairs) {
    const PairsOfGpc groups = by_gpc(pairs, as_listed(pairs));
    std::vector<int> order;
    for (std::size_t turn = 0; order.size() < pairs.size(); ++turn) {
        for (const auto& [gpc, group] : groups) {
            if (turn < group.size()) order.push_back(group[turn]);
        }
    }
    return order;
}

std::vector<PairShare> share_balanced(const std::vector<SmPair>& pairs, const ShareSizes& sizes) {
    const std::vector<int> order = interleave(pairs);
    const auto share = static_cast<std::size_t>(sizes.dispatch_pairs + sizes.compute_pairs);
    std::vector<PairShare> shares;
    for (int rank = 0; rank < sizes.num_ranks; ++rank) {
        // One place further in every turn: with as many ranks as GPCs each would else stay in one.
        const auto ranks = static_cast<std::size_t>(sizes.num_ranks);
        std::vector<int> own;
        for (std::size_t turn = 0; own.size() < share; ++turn) {
            own.push_back(order[turn * ranks + (static_cast<std::size_t>(rank) + turn) % ranks]);
        }
        PairsOfGpc left = by_gpc(pairs, own);
        PairShare result;
        for (int i = 0; i < sizes.dispatch_pairs; ++i) {
            const auto most = std::max_element(
                left.begin(), left.end(),
                [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
            result.dispatch.push_back(most->second.back());
            most->second.pop_back();
        }
        for (const auto& [gpc, group] : left) {
            result.compute.insert(result.compute.end(), group.begin(), group.end());
        }
        std::sort(result.dispatch.begin(), result.dispatch.end());
        std::sort(result.compute.begin(), result.compute.end());
        shares.push_back(std::move(result));
    }
    return shares;
}

// One GPC after the other, the largest first.
std::vector<int> sort_by_gpc(const std::vector<SmPair>& pairs) {
    std::vector<int> order = as_listed(pairs);
    PairsOfGpc groups = by_gpc(pairs, order);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const int gpc_a = pairs[static_cast<std::size_t>(a)].gpc;
        const int gpc_b = pairs[static_cast<std::size_t>(b)].gpc;
        const std::size_t size_a = groups[gpc_a].size();
        const std::size_t size_b = groups[gpc_b].size();
        return size_a != size_b ? size_a > size_b : gpc_a < gpc_b;
    });
    return order;
}

std::vector<PairShare> share_in_order(const std::vector<int>& order, const ShareSizes& sizes) {
    std::vector<PairShare> shares(static_cast<std::size_t>(sizes.num_ranks));
    auto next = order.begin();
    for (PairShare& share : shares) {
        const auto compute = next + sizes.dispatch_pairs;
        share.dispatch.assign(next, compute);
        next = compute + sizes.compute_pairs;
        share.compute.assign(compute, next);
    }
    return shares;
}

}  // namespace

std::vector<PairShare> share_pairs(const std::vector<SmPair>& pairs, const ShareSizes& sizes,
                                   SmPlacement placement) {
    switch (placement) {
        case SmPlacement::kBalanced:
            break;
        case SmPlacement::kInOrder:
            return share_in_order(as_listed(pairs), sizes);
        case SmPlacement::kByGpc:
            return share_in_order(sort_by_gpc(pairs), sizes);
    }
    return share_balanced(pairs, sizes);
}

}  // namespace gcmoe::cuda::runtime
