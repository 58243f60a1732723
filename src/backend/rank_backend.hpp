// What the operator asks of a backend: memory for one rank, launches in stream order, a way to read
// back. Each backend fills this once; `op` finds it by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gcmoe/operator.hpp"
#include "gcmoe/stall_report.hpp"
#include "gcmoe/weights.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/session.hpp"
#include "trace/trace.hpp"

namespace gcmoe::backend {

// A plan as the roles need it: sizes and signal offsets, and the choices that no offset depends on.
struct Plan {
    std::string name;
    layout::PlanMemory memory;
    std::uint32_t lead_blocks = 1;
    bool overlap = true;
    bool has_role4 = false;  // the shared expert's tasks are role 4's list
    SmPlacement placement = SmPlacement::kBalanced;
};

// All that a rank's instance is made from. Checked by op/validate before.
struct RankSetup {
    Shape shape;
    int rank = 0;
    std::string workspace;
    LaunchMode launch_mode = LaunchMode::kGraph;
    int device = 0;
    std::shared_ptr<const PackedWeights> weights;
    layout::SymmetricHeap heap;
    layout::LocalMemory local;
    std::vector<Plan> plans;
    WaitLimits wait_limits;
    bool poison = false;
    int trace_events = 0;      // most events that a unit keeps; 0 = no trace
    bool shared_heap = false;  // peers are other processes: they map the heap by a handle
};

// One launch, as the stream sees it.
struct LaunchRequest {
    int plan_idx = 0;
    int num_tokens = 0;
    std::uint16_t* y = nullptr;  // (num_tokens, hidden) bf16
    std::int64_t y_stride = 0;   // elements
    void* stream = nullptr;      // GPU: the caller's, null = the workspace's own
    std::function<int()> before;
    std::function<void()> after;
};

// The two memories of a rank: what peers reach, and the rest.
enum class Room : std::uint8_t { kHeap, kLocal };

// Bytes of a room.
struct RoomPart {
    Room room = Room::kHeap;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

// A rank's memory as the host can read it. CPU: the memory itself. GPU: a copy.
struct HostView {
    std::uint8_t* heap = nullptr;
    std::uint8_t* local = nullptr;
};

class RankBackend {
  public:
    virtual ~RankBackend() = default;
    // Own symmetric memory, as the roles address it (a GPU's: not for the host to read).
    [[nodiscard]] virtual std::uint8_t* heap_base() = 0;
    // Some bytes of a room, to and from the host. Callers: no launch is open (synchronize).
    virtual void read(Room room, std::uint64_t offset, void* to, std::uint64_t bytes) = 0;
    virtual void write(Room room, std::uint64_t offset, const void* from, std::uint64_t bytes) = 0;
    virtual void fill(Room room, std::uint64_t offset, std::uint8_t value, std::uint64_t bytes) = 0;
    // All of both rooms, as they are now; valid until the next call. Large: for tests.
    virtual HostView host_view() = 0;
    // The same, but on a GPU only these parts are copied; what stands beside them is undefined.
    virtual HostView host_view(const std::vector<RoomPart>& parts) = 0;
    // Peers in other processes. share_heap: what they need to map the own heap. map_peer: a peer's
    // heap as this process addresses it, until the same peer is mapped again; no launch is running.
    // Errors: kUnsupported (a backend without, the machine), kBadConfig (not a heap like the own).
    virtual Status share_heap(SharedHandle* /*out*/) { return no_processes(); }
    virtual Status map_peer(int /*rank*/, const SharedHandle& /*handle*/, std::uint8_t** /*out*/) {
        return no_processes();
    }
    // Peers are known from here on; called once before the first launch and after a move.
    virtual void connect(const layout::PeerTable& peers) = 0;
    // Sets all signals; no launch is running.
    virtual void init_signals(const protocol::StartPoint& start) = 0;
    // New symmetric memory; the inputs go along. Threads of one process may still store to the old,
    // which stays mapped; with peers in other processes it is unmapped at once: they have it mapped
    // themselves. No launch is running. Errors: kUnsupported (no memory).
    virtual Status move_heap() = 0;
    virtual Status launch(const LaunchRequest& request) = 0;
    // Waits until the rank's stream is empty. True = every role of every launch came to its end.
    virtual bool synchronize() = 0;
    // Of the last finished launch.
    [[nodiscard]] virtual LaunchTimes times() = 0;
    // Where the last launch's units ran; empty where units are not tied to places (CPU).
    [[nodiscard]] virtual Placement placement() = 0;
    // Adds what the rank's units have recorded since creation; nothing without trace_events.
    // Callers: no launch is open.
    virtual void append_trace(trace::Trace* out) = 0;
    [[nodiscard]] virtual layout::RankMemory memory(int plan_idx) const = 0;

  private:
    static Status no_processes() {
        return {Code::kUnsupported, "this backend has no ranks in separate processes"};
    }
};

// Runs the units of all ranks of a group that live in this process. Kept by the group, so that
// ranks which share an executor (the stepper, a GPU) find it.
class Executor {
  public:
    virtual ~Executor() = default;
};

}  // namespace gcmoe::backend
