// Predicts the bytes of every protocol buffer of every rank after a launch, from all ranks' inputs.
// Written from docs/protocol.md alone: it shares the memory layout with the operator, but no line
// of protocol or schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gcmoe/shape.hpp"
#include "layout/local_memory.hpp"
#include "layout/symmetric_heap.hpp"
#include "reference/inputs.hpp"

namespace gcmoe::reference {

// The workspace: one plan, and the counters' start values.
struct OracleConfig {
    Shape shape;
    int max_tokens = 0;
    int row_block = 0;             // BM
    int ring_blocks = 0;           // B
    int second_columns = 0;        // n2 = ceil(hidden / second_columns)
    std::uint32_t generation = 0;  // last finished before the first launch
    std::uint32_t session = 1;
    std::uint64_t s0 = 0;
    std::uint32_t rows_left = 0;
};

// A row of the ring.
struct ExpectedRow {
    std::uint32_t rank = 0;  // the token's owner
    std::uint32_t slot = 0;  // token * topk + position
    float weight = 0.0F;
    std::vector<std::uint8_t> codes;    // (hidden) natural K order
    std::vector<std::uint32_t> scales;  // (hidden / 128)
};

// What one rank's memory holds after the launches so far. Places that no launch has written are not
// compared.
struct ExpectedMemory {
    std::uint32_t generation = 0;
    std::uint32_t session = 1;
    std::uint32_t num_tokens = 0;
    std::uint64_t s0 = 0;
    std::uint64_t launches = 0;
    // By half g & 1; empty = that half is untouched.
    std::vector<std::uint64_t> recv_count[2];               // (num_ranks, experts_per_rank)
    std::vector<std::vector<std::uint32_t>> recv_slot[2];   // (num_ranks) lists
    std::vector<std::uint32_t> source_count;                // (num_ranks, experts_per_rank)
    std::vector<std::uint32_t> source_offset;               // (num_ranks, experts_per_rank)
    std::vector<std::optional<std::uint64_t>> block_table;  // (table_blocks)
    std::uint64_t num_blocks = 0;                           // the word
    std::vector<std::uint64_t> done;                        // (num_ranks)
    std::vector<std::uint32_t> rows_left;                   // (num_ranks); the targets are equal
    std::vector<std::uint64_t> statistics;                  // (experts_per_rank)
    std::uint64_t rows_received = 0;
    std::uint64_t blocks_received = 0;
    std::vector<std::vector<ExpectedRow>> ring;  // (ring_blocks) live rows of the last block there

    [[nodiscard]] std::uint32_t blocks_of_last_launch() const {
        return static_cast<std::uint32_t>(num_blocks);
    }
};

// Follows a workspace launch by launch.
class DispatchOracle {
  public:
    explicit DispatchOracle(const OracleConfig& config);
    // One launch of all ranks. Shapes: inputs (num_ranks).
    void launch(const std::vector<RankInputs>& inputs);
    // Ring rows of earlier launches are no longer compared: somebody has overwritten them.
    void forget_ring();
    [[nodiscard]] const OracleConfig& config() const { return config_; }
    [[nodiscard]] const ExpectedMemory& rank(int rank) const {
        return ranks_[static_cast<std::size_t>(rank)];
    }

  private:
    OracleConfig config_;
    std::vector<ExpectedMemory> ranks_;
};

// Blocks that a launch needs on a rank: every expert ends in a partly filled one.
int num_blocks_of_rank(const Shape& shape, const std::vector<RankInputs>& inputs, int rank,
                       int row_block);

// One rank's memory as it is.
struct ActualMemory {
    layout::SymmetricHeap heap;
    std::uint8_t* heap_base = nullptr;
    layout::LocalMemory local;
    std::uint8_t* local_base = nullptr;
    layout::PlanMemory plan;
};

// The first place where memory is not as predicted.
struct Difference {
    std::string region;  // as in docs/protocol.md
    std::string index;   // "[1][3][5]"
    std::uint64_t expected = 0;
    std::uint64_t seen = 0;

    [[nodiscard]] std::string text() const;
};

// Compares all buffers of one rank; nullopt = equal.
std::optional<Difference> find_difference(const DispatchOracle& oracle, int rank,
                                          const ActualMemory& actual);

}  // namespace gcmoe::reference
