#include "group/group_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace gcmoe {
namespace group {

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

Configuration configuration_of(GroupState* group, const std::string& workspace, int rank) {
    const std::lock_guard<std::mutex> lock(group->mutex);
    return group->workspaces[workspace].members[static_cast<std::size_t>(rank)].configuration;
}

Status find_peers(GroupState* group, const std::string& workspace, int rank,
                  layout::PeerTable* peers) {
    const std::lock_guard<std::mutex> lock(group->mutex);
    const std::vector<Member>& members = group->workspaces[workspace].members;
    std::vector<const Configuration*> configurations;
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i].backend == nullptr) {
            return {Code::kBadConfig,
                    fmt::format("workspace '{}': rank {} of {} has not created its operator",
                                workspace, i, members.size())};
        }
        configurations.push_back(&members[i].configuration);
    }
    if (const std::string text = difference(configurations); !text.empty()) {
        return {Code::kBadConfig, fmt::format("workspace '{}': ranks differ: {}", workspace, text)};
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

Status Group::join_host(const HostOptions& options, std::shared_ptr<Group>* out) {
    try {
        auto state = std::make_unique<GroupState>();
        state->num_ranks = options.num_ranks;
        GCMOE_RETURN_IF_ERROR(group::HostSession::open(options, &state->host));
        *out = std::make_shared<Group>(std::move(state));
        return {};
    } catch (const std::exception& error) {  // want of memory
        return {Code::kUnsupported, fmt::format("session '{}': {}", options.session, error.what())};
    }
}

Group::Group(std::unique_ptr<GroupState> state) : state_(std::move(state)) {}
Group::~Group() = default;
int Group::num_ranks() const { return state_->num_ranks; }

}  // namespace gcmoe
