#include "cuda/runtime/workspace_launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cuda/device/device_buffer.hpp"
#include "cuda/runtime/stream_capture.hpp"

namespace gcmoe::cuda::runtime {
namespace {

using device::cuda_status;

// Graphs kept per workspace: one per plan and output buffer; callers that hand out ever new outputs
// pay for a capture (some 100 us) each time.
constexpr std::size_t kMostGraphs = 32;

Status make_event(cudaEvent_t* event) {
    return cuda_status(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                       "creating an event");
}

}  // namespace

WorkspaceLauncher::~WorkspaceLauncher() {
    if (chain_ != nullptr) {
        const std::lock_guard<std::mutex> lock(chain_->mutex);
        if (chain_->last == this) chain_->last = nullptr;
    }
    for (Captured& captured : captured_) cudaGraphExecDestroy(captured.exec);
    for (Set& set : sets_) {
        if (set.fork != nullptr) cudaEventDestroy(set.fork);
    }
    for (cudaEvent_t event : last_ended_) {
        if (event != nullptr) cudaEventDestroy(event);
    }
    if (fork_ != nullptr) cudaEventDestroy(fork_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (capture_stream_ != nullptr) cudaStreamDestroy(capture_stream_);
}

Status WorkspaceLauncher::create(int num_ranks, LaunchMode mode,
                                 std::shared_ptr<LaunchChain> chain) {
    mode_ = mode;
    chain_ = std::move(chain);
    const auto count = static_cast<std::size_t>(num_ranks);
    next_set_.assign(count, 0);
    written_.assign(count, -1);
    failed_.resize(count);
    last_ended_.assign(count, nullptr);
    for (cudaEvent_t& event : last_ended_) GCMOE_RETURN_IF_ERROR(make_event(&event));
    GCMOE_RETURN_IF_ERROR(make_event(&fork_));
    for (int rank = 0; rank < num_ranks; ++rank) {
        ranks_.emplace_back();
        GCMOE_RETURN_IF_ERROR(ranks_.back().create());
    }
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                      "creating a stream"));
    return cuda_status(cudaStreamCreateWithFlags(&capture_stream_, cudaStreamNonBlocking),
                       "creating a stream");
}

WorkspaceLauncher::Set& WorkspaceLauncher::set_of(int rank) {
    const std::uint64_t number = next_set_[static_cast<std::size_t>(rank)];
    while (first_set_ + sets_.size() <= number) {
        sets_.emplace_back();
        sets_.back().ranks.resize(ranks_.size());
    }
    return sets_[number - first_set_];
}

Status WorkspaceLauncher::submit(int rank, const RankLaunch& launch) {
    const std::lock_guard<std::mutex> lock(chain_->mutex);
    Set& set = set_of(rank);
    set.ranks[static_cast<std::size_t>(rank)] = launch;
    Status status = check_streams(set);
    if (!status.ok()) {
        set.ranks[static_cast<std::size_t>(rank)].reset();
        return status;
    }
    ++next_set_[static_cast<std::size_t>(rank)];
    ++set.arrived;
    if (set.sent_off) {
        status = run_alone(&set, rank);
    } else if (set.arrived == static_cast<int>(ranks_.size())) {
        status = run_complete(&set);
        if (!status.ok()) note_failure(set, rank, status);
    }
    while (!sets_.empty() && sets_.front().arrived == static_cast<int>(ranks_.size())) {
        if (sets_.front().fork != nullptr) cudaEventDestroy(sets_.front().fork);
        sets_.pop_front();
        ++first_set_;
    }
    return status;
}

Status WorkspaceLauncher::check_streams(const Set& set) const {
    if (set.sent_off) return {};
    const RankLaunch* first = nullptr;
    for (const auto& rank : set.ranks) {
        if (!rank) continue;
        if (first == nullptr) first = &*rank;
        if (rank->stream == first->stream && rank->plan_idx == first->plan_idx) continue;
        return {
            Code::kBadInput,
            fmt::format("ranks {} and {} of one process give different streams or plans ({} "
                        "and {}, plan {} and {}) for the same launch",
                        first->launch.memory.rank(), rank->launch.memory.rank(),
                        static_cast<const void*>(first->stream),
                        static_cast<const void*>(rank->stream), first->plan_idx, rank->plan_idx)};
    }
    return {};
}

Status WorkspaceLauncher::run_complete(Set* set) {
    std::vector<const RankLaunch*> ranks;
    std::vector<int> numbers;
    for (std::size_t i = 0; i < set->ranks.size(); ++i) {
        ranks.push_back(&*set->ranks[i]);
        numbers.push_back(static_cast<int>(i));
    }
    const cudaStream_t stream = ranks[0]->stream != nullptr ? ranks[0]->stream : stream_;
    bool capturing = false;
    GCMOE_RETURN_IF_ERROR(is_capturing(stream, &capturing));
    if (!capturing) GCMOE_RETURN_IF_ERROR(follow_last_launch(stream));
    caller_captures_ = caller_captures_ || capturing;
    GCMOE_RETURN_IF_ERROR(write_changed_tokens(ranks, stream));
    if (mode_ == LaunchMode::kSerial) {
        GCMOE_RETURN_IF_ERROR(run_serial(ranks, stream));
    } else if (mode_ == LaunchMode::kEager || capturing) {
        GCMOE_RETURN_IF_ERROR(run_streams(ranks, stream));
    } else {
        GCMOE_RETURN_IF_ERROR(run_graph(ranks, stream));
    }
    for (auto& rank : set->ranks) rank.reset();
    return capturing ? Status{} : note_end(numbers, stream);
}

Status WorkspaceLauncher::wait_for_all(cudaStream_t stream) const {
    for (cudaEvent_t ended : last_ended_) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaStreamWaitEvent(stream, ended), "following the last launch"));
    }
    return {};
}

// Launches never overlap: after another workspace's, or on another stream than the last one's, wait
// for its end.
Status WorkspaceLauncher::follow_last_launch(cudaStream_t stream) {
    if (chain_->last != nullptr && chain_->last != this) {
        GCMOE_RETURN_IF_ERROR(chain_->last->wait_for_all(stream));
    }
    chain_->last = this;
    if (stream == last_stream_) return {};
    GCMOE_RETURN_IF_ERROR(wait_for_all(stream));
    last_stream_ = stream;
    return {};
}

// The other ranks of a set have heard that their launch was taken: their synchronize tells them.
void WorkspaceLauncher::note_failure(const Set& set, int caller, const Status& status) {
    for (std::size_t rank = 0; rank < failed_.size(); ++rank) {
        if (static_cast<int>(rank) != caller && set.ranks[rank]) failed_[rank] = status;
        written_[rank] = -1;
    }
}

// The word keeps its value from launch to launch, and a write costs a node of its own.
Status WorkspaceLauncher::write_changed_tokens(const std::vector<const RankLaunch*>& ranks,
                                               cudaStream_t stream) {
    std::vector<const RankLaunch*> changed;
    for (const RankLaunch* rank : ranks) {
        int& written = written_[rank->launch.memory.rank()];
        if (caller_captures_ || written != rank->num_tokens) changed.push_back(rank);
        written = rank->num_tokens;
    }
    return write_num_tokens(changed, stream);
}

Status WorkspaceLauncher::run_streams(const std::vector<const RankLaunch*>& ranks,
                                      cudaStream_t stream) {
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(fork_, stream), "forking the roles"));
    for (const RankLaunch* rank : ranks) {
        GCMOE_RETURN_IF_ERROR(ranks_[rank->launch.memory.rank()].begin(*rank, fork_));
    }
    for (const RankLaunch* rank : ranks) {
        GCMOE_RETURN_IF_ERROR(ranks_[rank->launch.memory.rank()].end(*rank, stream));
    }
    return {};
}

Status WorkspaceLauncher::capture(const std::vector<const RankLaunch*>& ranks, Captured* captured) {
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaStreamBeginCapture(capture_stream_, cudaStreamCaptureModeThreadLocal),
                    "beginning a capture"));
    const Status recorded = run_streams(ranks, capture_stream_);
    cudaGraph_t graph = nullptr;
    const Status ended =
        cuda_status(cudaStreamEndCapture(capture_stream_, &graph), "ending a capture");
    if (recorded.ok() && ended.ok()) {
        const Status made =
            cuda_status(cudaGraphInstantiate(&captured->exec, graph, 0), "making a graph");
        cudaGraphDestroy(graph);
        return made;
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    return recorded.ok() ? ended : recorded;
}

Status WorkspaceLauncher::run_graph(const std::vector<const RankLaunch*>& ranks,
                                    cudaStream_t stream) {
    Captured wanted;
    wanted.plan_idx = ranks[0]->plan_idx;
    for (const RankLaunch* rank : ranks) {
        wanted.outputs.emplace_back(rank->launch.y, rank->launch.y_stride);
    }
    auto found = std::find_if(captured_.begin(), captured_.end(), [&](const Captured& captured) {
        return captured.plan_idx == wanted.plan_idx && captured.outputs == wanted.outputs;
    });
    if (found == captured_.end()) {
        GCMOE_RETURN_IF_ERROR(capture(ranks, &wanted));
        captured_.push_front(std::move(wanted));
        if (captured_.size() > kMostGraphs) {
            cudaGraphExecDestroy(captured_.back().exec);  // CUDA keeps it until it has ended
            captured_.pop_back();
        }
    } else {
        captured_.splice(captured_.begin(), captured_, found);
    }
    return cuda_status(cudaGraphLaunch(captured_.front().exec, stream), "launching a graph");
}

// Those that wait run as streams from here on; so do those that come later.
Status WorkspaceLauncher::send_off(Set* set) {
    set->sent_off = true;
    if (set->fork == nullptr) GCMOE_RETURN_IF_ERROR(make_event(&set->fork));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(set->fork, stream_), "forking the roles"));
    for (std::size_t i = 0; i < set->ranks.size(); ++i) {
        if (set->ranks[i]) GCMOE_RETURN_IF_ERROR(run_alone(set, static_cast<int>(i)));
    }
    return {};
}

Status WorkspaceLauncher::run_alone(Set* set, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const RankLaunch& launch = *set->ranks[at];
    bool capturing = false;
    if (launch.stream != nullptr) {
        GCMOE_RETURN_IF_ERROR(is_capturing(launch.stream, &capturing));
    }
    if (capturing) {
        return {Code::kBadInput,
                fmt::format("rank {}: a launch under capture needs all {} ranks to launch before "
                            "one synchronises",
                            rank, ranks_.size())};
    }
    // The rank's own streams order its launches; nothing of another rank may stand before.
    const cudaStream_t dispatch = launch.partition->dispatch.stream();
    const cudaStream_t stream =
        launch.stream != nullptr ? launch.stream : launch.partition->compute.stream();
    cudaEvent_t fork = set->fork;
    if (launch.stream != nullptr) {
        GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(fork_, stream), "forking the roles"));
        fork = fork_;
    }
    if (chain_->last != nullptr && chain_->last != this) {
        GCMOE_RETURN_IF_ERROR(chain_->last->wait_for_all(dispatch));
    }
    chain_->last = this;
    last_stream_ = nullptr;
    GCMOE_RETURN_IF_ERROR(
        cuda_status(cudaStreamWaitEvent(dispatch, last_ended_[at]), "following the last launch"));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaStreamWaitEvent(dispatch, fork), "forking role 1"));
    GCMOE_RETURN_IF_ERROR(write_changed_tokens({&launch}, dispatch));
    GCMOE_RETURN_IF_ERROR(cuda_status(cudaEventRecord(fork_, dispatch), "forking the roles"));
    GCMOE_RETURN_IF_ERROR(ranks_[at].begin(launch, fork_));
    GCMOE_RETURN_IF_ERROR(ranks_[at].end(launch, stream));
    set->ranks[at].reset();
    return note_end({rank}, stream);
}

Status WorkspaceLauncher::note_end(const std::vector<int>& ranks, cudaStream_t stream) {
    for (const int rank : ranks) {
        GCMOE_RETURN_IF_ERROR(
            cuda_status(cudaEventRecord(last_ended_[static_cast<std::size_t>(rank)], stream),
                        "noting the end of a launch"));
    }
    return {};
}

Status WorkspaceLauncher::synchronize(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    {
        const std::lock_guard<std::mutex> lock(chain_->mutex);
        if (!failed_[at].ok()) return std::exchange(failed_[at], Status{});
        for (Set& set : sets_) {
            if (!set.ranks[at]) continue;
            if (mode_ == LaunchMode::kSerial) {
                return {Code::kBadInput,
                        fmt::format("serial launches need all {} ranks to launch before rank {} "
                                    "synchronises",
                                    ranks_.size(), rank)};
            }
            GCMOE_RETURN_IF_ERROR(send_off(&set));
        }
    }
    return cuda_status(cudaEventSynchronize(last_ended_[at]), "running the roles");
}

void WorkspaceLauncher::restart() {
    const std::lock_guard<std::mutex> lock(chain_->mutex);
    for (Set& set : sets_) {
        if (set.fork != nullptr) cudaEventDestroy(set.fork);
    }
    sets_.clear();
    first_set_ = 0;
    // They hold the addresses of memory that may have moved.
    for (Captured& captured : captured_) cudaGraphExecDestroy(captured.exec);
    captured_.clear();
    std::fill(written_.begin(), written_.end(), -1);
    std::fill(failed_.begin(), failed_.end(), Status{});
    std::fill(next_set_.begin(), next_set_.end(), 0);
}

}  // namespace gcmoe::cuda::runtime
