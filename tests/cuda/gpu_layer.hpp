// A generated layer over virtual ranks on one GPU, through the public API.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gcmoe/operator.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::test {

struct LayerOptions {
    LaunchMode launch_mode = LaunchMode::kGraph;
    int dispatch_units = 0;  // 0 = the plan's choice
    int row_block = 16;
    int ring_blocks = 0;
    bool overlap = true;
    bool poison = true;
    SharedExperts shared_experts = SharedExperts::kAuto;
    CombineUnits combine = CombineUnits::kAuto;
    SmPlacement placement = SmPlacement::kBalanced;
    int capacity = 256;  // of each rank
    double deadline_s = 10.0;
    int trace_events = 0;
};

class GpuLayer {
  public:
    GpuLayer(const Shape& shape, const LayerOptions& options);
    ~GpuLayer();

    // Global tokens [0, total) spread over the ranks; one launch; rows of all ranks behind each
    // other. Throws on any error.
    std::vector<std::uint16_t> run(int total_tokens);
    // Tokens [first, first + n) on rank 0, none elsewhere.
    std::vector<std::uint16_t> run_tokens(int first, int n);
    // As run with a capacity too large to be staged whole: only the rows themselves are written.
    std::vector<std::uint16_t> run_rows(int total_tokens);
    // counts[rank] tokens on every rank, from the stream `seed`.
    std::vector<std::uint16_t> run_counts(const std::vector<int>& counts, int seed);
    // 0xFF over ring and combine rows.
    void poison();
    // As run, each rank from a thread of its own that synchronises at once.
    std::vector<std::uint16_t> run_from_threads(int total_tokens);
    // Launches the last run's inputs on a stream, into device memory.
    void enqueue(void* stream);
    // The same into other device memory. Shapes: outputs (num_ranks) of (tokens of the rank,
    // hidden).
    void enqueue_into(void* stream, const std::vector<std::uint16_t*>& outputs);
    // Waits for launches that were not captured; throws if one stalled.
    void synchronize();
    void clear_outputs();
    std::vector<std::uint16_t> device_rows();
    std::vector<std::uint16_t> rows_of(const std::vector<std::uint16_t*>& outputs);
    // One rank alone; its synchronize's status.
    Status launch_one(int rank, int tokens);
    Status reset(bool move);

    // Of the last run.
    [[nodiscard]] int tokens(int rank) const { return tokens_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] Operator& op(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    [[nodiscard]] bool placements_hold();
    [[nodiscard]] std::string placement_text();

  private:
    void stage(const std::vector<reference::RankInputs>& inputs);
    std::vector<std::uint16_t> launch_all();

    Shape shape_;
    LayerOptions options_;
    std::shared_ptr<Group> group_;
    std::vector<std::unique_ptr<Operator>> ops_;
    std::vector<int> tokens_;              // (num_ranks) of the last run
    std::vector<std::uint16_t*> outputs_;  // (num_ranks) device, (capacity, hidden)
};

}  // namespace gcmoe::test
