// The in-process group's book: who has joined which workspace, and with which configuration.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/rank_backend.hpp"
#include "gcmoe/group.hpp"
#include "gcmoe/weights.hpp"
#include "layout/peer_table.hpp"

namespace gcmoe {

namespace group {

// What all ranks of a workspace must agree on, as (field, value): compared before the first launch.
using Configuration = std::vector<std::pair<std::string, std::string>>;

struct Member {
    backend::RankBackend* backend = nullptr;  // null: this rank has not joined
    Configuration configuration;
    std::shared_ptr<const PackedWeights> weights;
};

struct Workspace {
    std::vector<Member> members;  // (num_ranks)
    // Of ranks that left before others: a peer that still runs may store into their heaps.
    std::vector<std::unique_ptr<backend::RankBackend>> left;
};

// Errors: kBadConfig, if the rank has joined this workspace before.
Status join(GroupState* group, const std::string& workspace, int rank, Member member);
// The rank's stream is empty. Its memory stays until the workspace's last rank leaves.
void leave(GroupState* group, const std::string& workspace, int rank,
           std::unique_ptr<backend::RankBackend> backend);

// The packed weights of every rank; null: this rank has not joined.
std::vector<std::shared_ptr<const PackedWeights>> joined_weights(GroupState* group,
                                                                 const std::string& workspace);

// The peers of a rank. Errors: kBadConfig naming the rank that has not joined, or the first field
// in which two ranks differ, with both values.
Status find_peers(GroupState* group, const std::string& workspace, int rank,
                  layout::PeerTable* peers);

}  // namespace group

struct GroupState {
    int num_ranks = 0;
    GroupOptions options;
    std::mutex mutex;
    std::map<std::string, group::Workspace> workspaces;
    std::string backend;                          // of all ranks; empty: none has been made
    std::shared_ptr<backend::Executor> executor;  // shared by the ranks, if their backend wants one
};

}  // namespace gcmoe
