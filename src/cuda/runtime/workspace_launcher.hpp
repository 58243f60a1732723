// Launches of one workspace: gathers the ranks of this process, and runs them as one CUDA graph, as
// streams, or serially.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/runtime/role_nodes.hpp"
#include "gcmoe/operator.hpp"

namespace gcmoe::cuda::runtime {

class WorkspaceLauncher;

// All workspaces of a group use the same SMs and streams: one launch at a time, in the order of the
// calls.
struct LaunchChain {
    std::mutex mutex;
    WorkspaceLauncher* last = nullptr;  // whose launch was the last one
};

// A launch number of all ranks is a set. It runs when its last rank has called; a rank that
// synchronises earlier sends off those that are there as streams, and the others follow one by one
// as they come (they meet in the protocol, which has a deadline for who never comes).
class WorkspaceLauncher {
  public:
    WorkspaceLauncher() = default;
    ~WorkspaceLauncher();
    WorkspaceLauncher(const WorkspaceLauncher&) = delete;
    WorkspaceLauncher& operator=(const WorkspaceLauncher&) = delete;

    Status create(int num_ranks, LaunchMode mode, std::shared_ptr<LaunchChain> chain);
    // Errors: kBadInput (ranks of a set on different streams), kInternal with CUDA's word.
    Status submit(int rank, const RankLaunch& launch);
    // Sends off what is waiting, and waits for this rank's last launch.
    Status synchronize(int rank);
    // The rank starts anew (a reset, or another operator took its place): its sets are counted from
    // those of the others. No launch is running.
    void restart();
    [[nodiscard]] LaunchMode mode() const { return mode_; }

  private:
    struct Set {
        std::vector<std::optional<RankLaunch>> ranks;  // waiting
        int arrived = 0;
        bool sent_off = false;       // runs as streams, rank by rank
        cudaEvent_t fork = nullptr;  // of the workspace's stream, when it was sent off
    };
    // A captured launch, and what it was captured for.
    struct Captured {
        int plan_idx = 0;
        std::vector<std::pair<const void*, std::int64_t>> outputs;  // (num_ranks) y and stride
        cudaGraphExec_t exec = nullptr;
    };

    Set& set_of(int rank);
    Status run_complete(Set* set);
    Status follow_last_launch(cudaStream_t stream);
    Status wait_for_all(cudaStream_t stream) const;
    void note_failure(const Set& set, int caller, const Status& status);
    Status write_changed_tokens(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream);
    Status run_streams(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream);
    Status run_graph(const std::vector<const RankLaunch*>& ranks, cudaStream_t stream);
    Status capture(const std::vector<const RankLaunch*>& ranks, Captured* captured);
    Status send_off(Set* set);
    Status run_alone(Set* set, int rank);
    Status note_end(const std::vector<int>& ranks, cudaStream_t stream);
    Status check_streams(const Set& set) const;

    std::shared_ptr<LaunchChain> chain_;  // its mutex guards everything here
    LaunchMode mode_ = LaunchMode::kGraph;
    cudaStream_t stream_ = nullptr;          // the workspace's own, primary context
    cudaStream_t capture_stream_ = nullptr;  // for own captures
    cudaStream_t last_stream_ = nullptr;     // of the last launch; null = several
    cudaEvent_t fork_ = nullptr;
    std::vector<ForkJoin> ranks_;          // (num_ranks)
    std::vector<cudaEvent_t> last_ended_;  // (num_ranks) end of the rank's last launch
    std::deque<Set> sets_;                 // from first_set_ on
    std::uint64_t first_set_ = 0;
    std::vector<std::uint64_t> next_set_;  // (num_ranks)
    std::vector<Status> failed_;           // (num_ranks) of a set that another rank's call made
    std::vector<int> written_;             // (num_ranks) num_tokens on the device; -1 = unknown
    bool caller_captures_ = false;         // a caller's graph writes num_tokens whenever it runs
    std::list<Captured> captured_;         // most recently used first
};

}  // namespace gcmoe::cuda::runtime
