// A group's book: which ranks of this process have joined which workspace, and with which
// configuration; and the session of ranks in other processes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/rank_backend.hpp"
#include "gcmoe/group.hpp"
#include "gcmoe/weights.hpp"
#include "group/configuration.hpp"
#include "group/host_session.hpp"
#include "layout/peer_table.hpp"

namespace gcmoe {

namespace group {

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

// The packed weights of every rank; null: this rank has not joined, or is another process.
std::vector<std::shared_ptr<const PackedWeights>> joined_weights(GroupState* group,
                                                                 const std::string& workspace);

// What a rank of this process has joined a workspace with.
Configuration configuration_of(GroupState* group, const std::string& workspace, int rank);

// The peers of a rank, all in this process. Errors: kBadConfig naming the rank that has not joined,
// or the first field in which two ranks differ, with both values.
Status find_peers(GroupState* group, const std::string& workspace, int rank,
                  layout::PeerTable* peers);

}  // namespace group

struct GroupState {
    int num_ranks = 0;
    GroupOptions options;
    std::unique_ptr<group::HostSession> host;  // null: all ranks are in this process
    std::mutex mutex;
    std::map<std::string, group::Workspace> workspaces;
    std::string backend;                          // of all ranks; empty: none has been made
    std::shared_ptr<backend::Executor> executor;  // shared by the ranks, if their backend wants one
};

}  // namespace gcmoe
