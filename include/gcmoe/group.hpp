// How ranks find each other. The in-process group holds every rank of one process: virtual ranks. A
// host group joins ranks that are processes of one host (docs/processes.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gcmoe/status.hpp"

namespace gcmoe {

// How the CPU backend runs the units of its ranks.
enum class ExecutorKind : std::uint8_t {
    kThreads,  // one thread per unit
    kStepper,  // one thread for all; a seed draws who makes the next signal access. All calls on
               // all ranks' operators must come from one host thread.
};

struct GroupOptions {
    ExecutorKind executor = ExecutorKind::kThreads;
    std::uint64_t seed = 0;          // stepper: the order of steps
    int resident_compute_units = 0;  // stepper: at most so many of a rank's compute units at once;
                                     // 0 = all. Units of role 1 are always resident.
};

// One rank that is a process of its own (CPU backend).
struct HostOptions {
    // Folder of mode 0700 where the ranks meet. Rank 0 makes it and removes it; what a dead session
    // left there is replaced.
    std::string session;
    int rank = 0;
    int num_ranks = 1;
    double wait_s =
        300.0;  // the longest that ranks wait for each other when they meet; 0 = for ever
    // Rank 0 only: takes the place of a rank 0 that was lost, whose session goes on.
    bool replaces_lost = false;
};

struct GroupState;  // src/group/group_state.hpp

// A set of num_ranks ranks. Operators created with the same workspace name on all ranks form one
// workspace. Destroy operators before the group.
class Group {
  public:
    // Ranks of one process (CPU backend, or virtual ranks on one GPU). Errors: kBadConfig.
    static Status in_process(int num_ranks, const GroupOptions& options,
                             std::shared_ptr<Group>* out);
    // This process as one rank of many. Operator::create and Operator::reset then wait for all
    // ranks, in the same order on each, one call at a time; resets name this process's operator
    // alone. Errors: kBadConfig, kBadInput (a folder that others can reach, or in use), kStalled
    // (rank 0 has not come), kUnsupported.
    static Status join_host(const HostOptions& options, std::shared_ptr<Group>* out);
    explicit Group(std::unique_ptr<GroupState> state);
    ~Group();
    [[nodiscard]] int num_ranks() const;
    [[nodiscard]] GroupState& state() { return *state_; }

  private:
    std::unique_ptr<GroupState> state_;
};

}  // namespace gcmoe
