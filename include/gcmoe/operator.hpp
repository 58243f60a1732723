// One MoE layer on one rank: input views, launches, results, statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gcmoe/group.hpp"
#include "gcmoe/partition.hpp"
#include "gcmoe/shape.hpp"
#include "gcmoe/stall_report.hpp"
#include "gcmoe/status.hpp"
#include "gcmoe/weights.hpp"

namespace gcmoe {

// Who runs the shared expert's tasks.
enum class SharedExperts : std::uint8_t {
    kAuto,     // in order: faster on one GPU at every size measured (docs/tuning.md)
    kInOrder,  // role 2, between its routed tasks
    kRole4,    // GPU: the communication partition once role 1 has ended, role 2 when it is through
};

// Who runs role 3, the combine.
enum class CombineUnits : std::uint8_t {
    kAuto,    // GPU: dispatch for few tokens (docs/tuning.md), else follow; CPU and serial: compute
    kFollow,  // GPU: role 2's, each when role 2 has left it: the kernel is launched ahead; not
              // serial
    kCompute,   // role 2's, when roles 1 and 2 have ended: a kernel of its own on a GPU
    kDispatch,  // role 1's, as the end of role 1: no launch in between; not with role 4 or serial
    kAll,       // GPU: those of both, all roles in one kernel (one grid); not with role 4 or serial
};

// Which of a GPU's SM pairs a rank's two partitions get. All but the first are there to measure
// what the balance gains; not serial.
enum class SmPlacement : std::uint8_t {
    kBalanced,  // both lie evenly over the GPCs, by a measured map of the SMs
    kInOrder,   // the driver's first pairs for dispatch, the next ones for compute
    kByGpc,     // the same, of the pairs sorted by GPC: dispatch empties one GPC after the other
};

// One way to run a launch: ring, partition, task sizes. A workspace holds up to 16, each with its
// own signals; a launch names one. Zero means: chosen by `plan` from the shape.
struct PlanOptions {
    std::string name = "default";
    Partition partition;  // CPU: role 1 threads and workers; default 1 + 2
    SmPlacement placement = SmPlacement::kBalanced;  // GPU
    int row_block = 0;                               // BM: 8, 16, 24 .. 64
    int ring_blocks = 0;     // B: a power of two; overlap off needs the most blocks of a launch
    int second_columns = 0;  // output columns of a second-GEMM task: a multiple of 128
    int lead_blocks = 0;     // first GEMMs that run ahead of a block's second GEMM, 1..ring_blocks
    bool overlap = true;     // false: role 2 starts after role 1's last row
    SharedExperts shared_experts = SharedExperts::kAuto;
    CombineUnits combine = CombineUnits::kAuto;
    // GPU: the tuned table that open values come from where it has this layer (docs/tune.md).
    // Empty = those that the library carries, "none" = rules alone, else the path of one.
    std::string tuned;
};

// GPU: how a launch reaches the device. The CPU backend knows one way only.
enum class LaunchMode : std::uint8_t {
    kGraph,   // one CUDA graph for all ranks of the process, made once per plan and output
    kEager,   // the same kernels on streams
    kSerial,  // four steps over all ranks in the primary context; no kernel waits for an unfinished
              // one: for sanitizers and profilers. Plans get overlap = false.
};

// Limits of every wait. 0 = for ever.
struct WaitLimits {
    double first_launch_s = 300.0;  // ranks may arrive late: load, compile, page in
    double steady_s = 30.0;
};

// Start values of the counters, for tests near their wrap. A running system would have reached
// them.
struct StartState {
    std::uint32_t generation = 0;  // last finished generation
    std::uint32_t session = 1;
    std::uint64_t s0 = 0;  // sequence number of the next block, every plan
    std::uint32_t rows_left = 0;
    std::uint64_t ticket = 0;
};

struct OperatorOptions {
    std::string workspace = "default";  // the same on all ranks; one instance per name and rank
    std::string backend = "cpu";        // never chosen silently
    int max_tokens = 0;                 // capacity of every buffer
    IndexType index_type = IndexType::kInt64;
    LaunchMode launch_mode = LaunchMode::kGraph;
    int device = 0;                  // GPU: CUDA's number of the device
    std::vector<PlanOptions> plans;  // empty: one default plan
    WaitLimits wait_limits;
    StartState start;
    bool capture = false;  // keep second-GEMM inputs so that a judge can read them
    bool poison = false;   // fill ring, combine and unused memory with 0xFF at creation
    int trace_events = 0;  // most events that a unit keeps for Operator::trace_json; 0 = none
};

// Where the caller puts a launch's inputs: this rank's symmetric memory (GPU: device memory; the
// host fills it by Operator::write_inputs).
struct InputViews {
    std::uint8_t* x = nullptr;  // (max_tokens, hidden) e4m3, rows of x_stride bytes
    std::uint32_t* x_scale =
        nullptr;                   // (max_tokens, x_scale_stride) words: floats, or 4 UE8M0 codes
    void* topk_idx = nullptr;      // (max_tokens, topk) int32 or int64; negative = unused slot
    float* topk_weight = nullptr;  // (max_tokens, topk)
    int x_stride = 0;
    int x_scale_stride = 0;
};

// A launch's inputs in the host's memory, rows without gaps.
struct HostInputs {
    int num_rows = 0;                        // 0..max_tokens
    const std::uint8_t* x = nullptr;         // (num_rows, hidden) e4m3
    const std::uint32_t* x_scale = nullptr;  // (num_rows, hidden / 128) words
    const std::int64_t* topk_idx = nullptr;  // (num_rows, topk); negative = unused slot
    const float* topk_weight = nullptr;      // (num_rows, topk)
};

struct LaunchArgs {
    int num_tokens = 0;  // 0..max_tokens
    // (num_tokens, hidden) bf16. GPU: device memory, 16-byte aligned; or host memory, which the
    // next synchronize fills (a launch before that waits for the one before).
    std::uint16_t* y = nullptr;
    std::int64_t y_stride = 0;  // elements between rows; 0 = hidden. GPU: a multiple of 8
    std::string plan;           // empty = first plan
    // GPU: a cudaStream_t; null = a stream of the workspace. Ranks of one process give the same:
    // the launch is made when the last of them has called. A stream under capture gets the roles as
    // nodes of the capture, with this num_tokens and y. Replays of such a graph are the caller's:
    // synchronize() does not wait for them, no launch of the operator may run beside them or while
    // the capture is open, and a reset makes the graph invalid.
    void* stream = nullptr;
    // CPU: run on the rank's stream before role 1 of this launch (fill the inputs; may return
    // another num_tokens, for which y must have room), and after role 3. A bad number of tokens or
    // an exception runs the launch with 0 tokens; the next synchronize returns kBadInput.
    std::function<int()> before;
    std::function<void()> after;
};

// Microseconds since the launch's role 1 began; -1 = nothing of the kind happened.
struct LaunchTimes {
    double role1_first_row_us = -1;
    double role1_last_row_us = -1;
    double role1_end_us = -1;
    double role2_first_task_us = -1;  // first routed first-GEMM task whose block was full
    double role2_end_us = -1;
    double role3_begin_us = -1;
    double role3_end_us = -1;
};

// Where the units of a launch ran, and where they belong. GPU: numbers of SMs, ascending; CPU:
// empty.
struct Placement {
    std::vector<int> dispatch_map;  // SMs of the rank's communication partition
    std::vector<int> compute_map;
    std::vector<int> combine_map;   // one of the two: see PlanOptions::combine. In one grid (all)
                                    // those of both; the hardware deals them out, the two maps are
                                    // empty
    std::vector<int> dispatch_ran;  // SMs that the units of role 1 recorded
    std::vector<int> compute_ran;   // of role 2
    std::vector<int> shared_ran;    // of role 4, which runs in the communication partition
    std::vector<int> combine_ran;   // of role 3

    // Roles 1 and 2 had every SM of their partition (in one grid: of the rank, together) once,
    // roles 3 and 4 ran inside theirs. Serial launches run in the primary context: their lists are
    // empty.
    [[nodiscard]] bool holds() const;
};

// What the last finished launch of a rank did, and sums since creation.
struct Statistics {
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
    std::uint64_t rows = 0;                  // ring rows since creation
    std::uint64_t blocks = 0;                // ring blocks since creation
    std::uint64_t laps = 0;                  // whole turns of the ring of the last launch's plan
    LaunchTimes times;                       // last launch
    Placement placement;                     // last launch
    std::vector<std::uint64_t> expert_rows;  // (experts_per_rank) rows received since creation
};

// One region of memory in the size report.
struct SizeEntry {
    std::string room;  // "symmetric" or "local"
    std::string name;
    std::string shape;
    std::uint64_t bytes = 0;
};

struct OperatorState;  // src/op/operator_state.hpp

// A rank's instance of the layer. Calls on one instance come from one thread at a time; every rank
// makes the same launches in the same order, also with 0 tokens.
class Operator {
  public:
    // Bytes per region before anything is allocated. Errors: kBadConfig.
    static Status size_report(const Shape& shape, const OperatorOptions& options,
                              std::vector<SizeEntry>* out);
    // GPU: no launch of this process is running (loading kernels waits for an idle device). Host
    // group: waits until all ranks create the workspace. Errors: kBadConfig, kUnsupported (backend
    // missing, with the reason), kStalled (host group: who has not come).
    static Status create(const Shape& shape, std::shared_ptr<const PackedWeights> weights,
                         std::shared_ptr<Group> group, int rank, const OperatorOptions& options,
                         std::unique_ptr<Operator>* out);
    explicit Operator(std::unique_ptr<OperatorState> state);
    ~Operator();

    // Where to put the inputs of the next launch. Ask again after reset(move): the memory has
    // moved, and in a host group the old pointers fault.
    [[nodiscard]] InputViews inputs();
    // Waits for all launches so far, then copies rows from the host's memory into inputs(). Errors:
    // kBadInput (num_rows over capacity, null arrays), kBadIndex (an id that does not fit int32
    // indices).
    Status write_inputs(const HostInputs& from);
    // Reads the ids of the first num_tokens rows. Errors: kBadIndex naming token, slot and id;
    // kBadInput if an id's expert was not packed.
    Status check_inputs(int num_tokens);
    // Queues one launch on the rank's stream and returns. Errors: kBadInput (num_tokens over
    // capacity, null y), kBadConfig (unknown plan, ranks that differ, naming the field), kBusy
    // after a fault.
    Status launch(const LaunchArgs& args);
    // Waits for all queued launches. Errors: kStalled with the stall report, kBadIndex (first bad
    // id; the slot counted as unused).
    Status synchronize();
    // After synchronize(): running roles write what these two read.
    [[nodiscard]] StallReport stall_report() const;
    [[nodiscard]] Statistics statistics() const;
    // What the units of these operators (ranks of this process) have recorded since creation, as
    // JSON for chrome://tracing and ui.perfetto.dev. After synchronize() of each. Errors: kBadInput
    // for none, a null one, or one made without OperatorOptions::trace_events.
    static Status trace_json(const std::vector<Operator*>& ranks, const std::string& title,
                             std::string* out);

    // Collective over the workspace: all launches have ended; clears the signals under the next
    // session. move = new symmetric memory, for when a rank of the old session may still store into
    // the old. all_ranks: those of this process; in a host group the one there is. Errors:
    // kBadInput, those of creation; in a host group kStalled naming who has not come, the same on
    // every rank. The workspace stays stalled unless all succeed.
    static Status reset(const std::vector<Operator*>& all_ranks, bool move);

    [[nodiscard]] OperatorState& state() { return *state_; }
    [[nodiscard]] const OperatorState& state() const { return *state_; }

  private:
    std::unique_ptr<OperatorState> state_;
};

}  // namespace gcmoe
