// One rank on the CPU: its memory, its stream of launches, its units.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/rank_backend.hpp"
#include "cpu/cpu_launch.hpp"
#include "cpu/shared_memory.hpp"

namespace gcmoe::cpu {

// Memory of one allocation, aligned as regions need it.
class AlignedBytes {
  public:
    AlignedBytes() = default;
    explicit AlignedBytes(std::uint64_t bytes);
    [[nodiscard]] std::uint8_t* data() const { return data_; }
    [[nodiscard]] std::uint64_t size() const { return bytes_; }

  private:
    std::unique_ptr<std::uint8_t[]> storage_;
    std::uint8_t* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

// Who runs the units of a rank: threads of its own, or the group's stepper.
class RankExecutor {
  public:
    virtual ~RankExecutor() = default;
    // A launch was added to the rank's queue.
    virtual void notify() = 0;
    // Returns when the rank's queue is empty and no unit runs.
    virtual void drain() = 0;
};

class CpuRank final : public backend::RankBackend {
  public:
    // Symmetric memory comes from allocate_heap, before anything else is called.
    explicit CpuRank(backend::RankSetup setup);
    ~CpuRank() override;
    // Errors: kUnsupported (no shared memory). Throws bad_alloc for private memory.
    Status allocate_heap();

    std::uint8_t* heap_base() override { return heap_.base; }
    void read(backend::Room room, std::uint64_t offset, void* to, std::uint64_t bytes) override;
    void write(backend::Room room, std::uint64_t offset, const void* from,
               std::uint64_t bytes) override;
    void fill(backend::Room room, std::uint64_t offset, std::uint8_t value,
              std::uint64_t bytes) override;
    backend::HostView host_view() override { return {heap_.base, local_.data()}; }
    backend::HostView host_view(const std::vector<backend::RoomPart>& /*parts*/) override {
        return host_view();
    }
    Status share_heap(SharedHandle* out) override;
    Status map_peer(int rank, const SharedHandle& handle, std::uint8_t** out) override;
    void connect(const layout::PeerTable& peers) override;
    void init_signals(const protocol::StartPoint& start) override;
    Status move_heap() override;
    Status launch(const backend::LaunchRequest& request) override;
    bool synchronize() override;
    [[nodiscard]] LaunchTimes times() override;
    [[nodiscard]] Placement placement() override { return {}; }
    void append_trace(trace::Trace* out) override;
    [[nodiscard]] layout::RankMemory memory(int plan_idx) const override;

    void set_executor(std::unique_ptr<RankExecutor> executor) { executor_ = std::move(executor); }

    // ---- for executors: one launch is open at a time, between begin_launch and end_launch.
    [[nodiscard]] bool has_launch();
    // Opens the oldest queued launch: runs its `before`, writes num_tokens.
    const CpuLaunch& begin_launch();
    // Closes it: runs its `after`.
    void end_launch();
    void note_failure() { failed_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] std::uint32_t most_dispatch_units() const { return most_dispatch_; }
    [[nodiscard]] std::uint32_t most_compute_units() const { return most_compute_; }

  private:
    void make_logs();
    // Symmetric memory: one of the two has bytes.
    struct Heap {
        AlignedBytes own;     // peers are ranks of this process
        SharedMemory shared;  // peers are other processes
        std::uint8_t* base = nullptr;
    };
    Status make_heap(Heap* out) const;
    [[nodiscard]] std::uint8_t* room(backend::Room room) const;

    backend::RankSetup setup_;
    Heap heap_;
    AlignedBytes local_;
    // Until the rank goes: a late peer of this process may still store there. Another process has
    // its own mapping.
    std::vector<AlignedBytes> old_heaps_;
    std::map<int, SharedMemory> peer_heaps_;
    layout::PeerTable peers_;
    std::uint32_t most_dispatch_ = 0;
    std::uint32_t most_compute_ = 0;
    std::vector<UnitTimes> dispatch_times_;
    std::vector<UnitTimes> compute_times_;
    std::vector<UnitTimes> combine_times_;
    std::vector<Scratch> dispatch_scratch_;
    std::vector<Scratch> compute_scratch_;
    std::vector<trace::Event> events_;  // (units, setup_.trace_events)
    std::vector<trace::UnitLog> logs_;  // (units): those of role 1 first; empty = no trace

    std::mutex queue_mutex_;
    std::deque<backend::LaunchRequest> queue_;
    backend::LaunchRequest open_request_;
    CpuLaunch open_;
    std::uint64_t num_launches_ = 0;  // begun in this session
    std::atomic<bool> failed_{false};
    std::unique_ptr<RankExecutor> executor_;
};

// Makes a rank that runs as the group's options say. `shared` is the group's slot for an executor
// that its ranks share; the first rank fills it. Errors: kUnsupported (no shared memory).
Status make_cpu_rank(backend::RankSetup setup, const GroupOptions& options,
                     std::shared_ptr<backend::Executor>* shared,
                     std::unique_ptr<backend::RankBackend>* out);

}  // namespace gcmoe::cpu
