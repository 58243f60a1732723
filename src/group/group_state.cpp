#include "group/group_state.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gcmoe {
namespace group {
namespace {

// The first field in which two configurations differ, as a sentence; empty if none.
std::string difference(int a_rank, const Configuration& a, int b_rank, const Configuration& b) {
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
        if (a[i] != b[i]) {
            return fmt::format("{} = {} on rank {} but {} = {} on rank {}", a[i].first, a[i].second,
                               a_rank, b[i].first, b[i].second, b_rank);
        }
    }
    if (a.size() == b.size()) return {};
    return fmt::format("rank {} has {} configured fields, rank {} has {}", a_rank, a.size(), b_rank,
                       b.size());
}

}  // namespace

Status join(GroupState* group, const std::string& workspace, int rank, Member member) {
    const std::lock_guard<std::mutex> lock(group->mutex);
    std::vector<Member>& members = group->workspaces[workspace].members;
    members.resize(static_cast<std::size_t>(group->num_ranks));
    Member& own = members[static_cast<std::size_t>(rank)];
    if (own.backend != nullptr) {
        return {Code::kBadConfig,
                fmt::format(
                    "workspace '{}': rank {} has joined already; give a second operator of this "
                    "rank another workspace name",
                    workspace, rank)};
    }
    own = std::move(member);
    return {};
}

void leave(GroupState* group, const std::string& workspace, int rank,
           std::unique_ptr<backend::RankBackend> backend) {
    Workspace ended;  // goes after the lock: backends join their threads
    const std::lock_guard<std::mutex> lock(group->mutex);
    Workspace& own = group->workspaces[workspace];
    own.members[static_cast<std::size_t>(rank)] = Member{};
    own.left.push_back(std::move(backend));
    const bool last = std::all_of(own.members.begin(), own.members.end(),
                                  [](const Member& member) { return member.backend == nullptr; });
    if (!last) return;
    ended = std::move(own);
    group->workspaces.erase(workspace);
}

std::vector<std::shared_ptr<const PackedWeights>> joined_weights(GroupState* group,
                                                                 const std::string& workspace) {
    const std::lock_guard<std::mutex> lock(group->mutex);
    std::vector<std::shared_ptr<const PackedWeights>> weights;
    for (const Member& member : group->workspaces[workspace].members) {
        weights.push_back(member.weights);
    }
    return weights;
}

Status find_peers(GroupState* group, const std::string& workspace, int rank,
                  layout::PeerTable* peers) {
    const std::lock_guard<std::mutex> lock(group->mutex);
    const std::vector<Member>& members = group->workspaces[workspace].members;
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i].backend == nullptr) {
            return {Code::kBadConfig,
                    fmt::format("workspace '{}': rank {} of {} has not created its operator",
                                workspace, i, members.size())};
        }
        const std::string text =
            difference(0, members[0].configuration, static_cast<int>(i), members[i].configuration);
        if (!text.empty()) {
            return {Code::kBadConfig,
                    fmt::format("workspace '{}': ranks differ: {}", workspace, text)};
        }
    }
    const Member& own = members[static_cast<std::size_t>(rank)];
    peers->base = reinterpret_cast<std::uint64_t>(own.backend->heap_base());
    peers->rank = static_cast<std::uint32_t>(rank);
    peers->num_ranks = static_cast<std::uint32_t>(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
        const auto peer = reinterpret_cast<std::uint64_t>(members[i].backend->heap_base());
        peers->offset[i] = static_cast<std::int64_t>(peer - peers->base);
    }
    return {};
}

}  // namespace group

Status Group::in_process(int num_ranks, const GroupOptions& options, std::shared_ptr<Group>* out) {
    if (num_ranks < 1 || num_ranks > layout::kMaxRanks) {
        return {Code::kBadConfig,
                fmt::format("num_ranks = {} must be in 1..{} (slots of the peer descriptor)",
                            num_ranks, layout::kMaxRanks)};
    }
    if (options.resident_compute_units < 0) {
        return {Code::kBadConfig, fmt::format("resident_compute_units = {} must not be negative",
                                              options.resident_compute_units)};
    }
    auto state = std::make_unique<GroupState>();
    state->num_ranks = num_ranks;
    state->options = options;
    *out = std::make_shared<Group>(std::move(state));
    return {};
}

Group::Group(std::unique_ptr<GroupState> state) : state_(std::move(state)) {}
Group::~Group() = default;
int Group::num_ranks() const { return state_->num_ranks; }

}  // namespace gcmoe
