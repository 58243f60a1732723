#include "cuda/runtime/partitions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "cuda/runtime/prepare_roles.hpp"
#include "cuda/runtime/sm_map.hpp"

namespace gcmoe::cuda::runtime {
namespace {

Status make_part(const SmMap& map, const std::vector<int>& pairs, int device, GreenContext* context,
                 std::vector<int>* sms) {
    std::vector<CUdevResource> resources;
    for (const int i : pairs) {
        resources.push_back(map.resources[static_cast<std::size_t>(i)]);
        for (const int sm : map.pairs[static_cast<std::size_t>(i)].sms) sms->push_back(sm);
    }
    std::sort(sms->begin(), sms->end());
    return GreenContext::create(resources, device, context);
}

}  // namespace

Status Partitions::find(int rank, const Partition& sizes, SmPlacement placement,
                        const RankPartition** out) {
    const std::tuple key(rank, sizes.dispatch_units, sizes.compute_units, placement);
    const auto found = made_.find(key);
    if (found != made_.end()) {
        *out = found->second.get();
        return {};
    }
    const SmMap* map = nullptr;
    GCMOE_RETURN_IF_ERROR(find_sm_map(device_, &map));
    const int pairs = static_cast<int>(map->pairs.size());
    const int needed = num_ranks_ * (sizes.dispatch_units + sizes.compute_units) / 2;
    if (pairs < needed) {
        return {Code::kUnsupported,
                fmt::format("{} ranks of {} + {} SMs need {} SM pairs, the driver gives {}",
                            num_ranks_, sizes.dispatch_units, sizes.compute_units, needed, pairs)};
    }
    const std::vector<PairShare> shares = share_pairs(
        map->pairs, {num_ranks_, sizes.dispatch_units / 2, sizes.compute_units / 2}, placement);
    const PairShare& share = shares[static_cast<std::size_t>(rank)];
    auto made = std::make_unique<RankPartition>();
    GCMOE_RETURN_IF_ERROR(
        make_part(*map, share.dispatch, device_, &made->dispatch, &made->dispatch_sms));
    GCMOE_RETURN_IF_ERROR(
        make_part(*map, share.compute, device_, &made->compute, &made->compute_sms));
    std::vector<int> pairs_of_both = share.dispatch;
    pairs_of_both.insert(pairs_of_both.end(), share.compute.begin(), share.compute.end());
    std::vector<int> sms_of_both;
    GCMOE_RETURN_IF_ERROR(make_part(*map, pairs_of_both, device_, &made->whole, &sms_of_both));
    GCMOE_RETURN_IF_ERROR(
        warm_up_roles({made->dispatch.stream(), made->compute.stream(), made->whole.stream()}));
    *out = made_.emplace(key, std::move(made)).first->second.get();
    return {};
}

}  // namespace gcmoe::cuda::runtime
