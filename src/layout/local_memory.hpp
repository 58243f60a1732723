// The local memory of one rank's workspace: ring, tables, signals, state. Only this rank touches
// it.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/host_device.hpp"
#include "gcmoe/shape.hpp"
#include "layout/regions.hpp"
#include "layout/ring.hpp"

namespace gcmoe::layout {

// At most so many plans in a workspace: one per token band or captured graph.
inline constexpr int kMaxPlans = 16;

// Whose units run role 3.
enum class CombineOn : std::uint32_t {
    kCompute,   // role 2's, after the ends of roles 1 and 2 in stream order
    kFollow,    // role 2's, each as soon as role 2 has left it
    kDispatch,  // role 1's, after their last row
    kAll,       // those of both, each after its own role: all roles are one kernel
};

// The sizes of a plan that the memory depends on, and the offsets of its own signal block.
struct PlanMemory {
    std::uint32_t row_block = 0;       // BM, rows of a ring block, 8..64
    std::uint32_t ring_blocks = 0;     // B, a power of two
    std::uint32_t ring_shift = 0;      // its logarithm; make_local_memory fills it
    std::uint32_t table_blocks = 0;    // B2, a power of two >= most blocks of a launch
    std::uint32_t n1 = 0;              // first-GEMM tasks per block: inter / 128
    std::uint32_t n2 = 0;              // second-GEMM tasks per block
    std::uint32_t second_columns = 0;  // output columns of a second-GEMM task
    std::uint32_t dispatch_units = 0;
    std::uint32_t compute_units = 0;
    CombineOn combine_on = CombineOn::kCompute;

    // Units of role 3.
    [[nodiscard]] GCMOE_HD std::uint32_t combine_units() const {
        if (combine_on == CombineOn::kAll) return dispatch_units + compute_units;
        return combine_on == CombineOn::kDispatch ? dispatch_units : compute_units;
    }
    // Role 3 is ordered behind role 2 by signals, not by the stream.
    [[nodiscard]] GCMOE_HD bool combines_by_signals() const {
        return combine_on != CombineOn::kCompute;
    }

    std::uint64_t l1_full_count = 0;   // (ring_blocks) u32
    std::uint64_t l1_empty_count = 0;  // (ring_blocks) u32
    std::uint64_t l2_full_mask = 0;    // (ring_blocks) u64
    std::uint64_t l2_empty_count = 0;  // (ring_blocks) u32
    std::uint64_t words = 0;           // PlanWords
};

// Single words of a plan's signal block. All move forward only.
struct PlanWords {
    std::uint64_t s0 = 0;        // sequence number of the next launch's block 0; role 3 writes it
    std::uint64_t launches = 0;  // finished launches of this plan; role 3 writes it
    std::uint64_t ticket = 0;    // role 2's tasks, taken in order
    std::uint64_t ticket_base = 0;         // first ticket of the next launch; role 3 writes it
    std::uint64_t shared_ticket = 0;       // tasks of the shared expert, with role 4
    std::uint64_t shared_ticket_base = 0;  // as ticket_base
    std::uint64_t role1_arrived = 0;       // grid barrier of role 1
    std::uint64_t role1_left = 0;          // units of role 1 that have pulled their last row
    std::uint64_t role2_left = 0;     // units of role 2 that have ended; see combines_by_signals
    std::uint64_t role3_arrived = 0;  // units of role 3 that have written their last token
};

// Words of the workspace that outlive a launch; role 3 writes generation, the host session.
struct StateWords {
    std::uint32_t generation = 0;  // last finished
    std::uint32_t session = 1;
    std::uint32_t num_tokens = 0;     // of the next launch; the caller writes it in stream order
    std::uint32_t stall_claimed = 0;  // taken once by the rank's first failing waiter
    std::uint64_t bad_index_claimed = 0;  // generation + 1 of the last launch that saw a bad id
    std::uint64_t bad_index_slot = 0;     // token * topk + slot of the first bad id of that launch
    std::int64_t bad_index_id = 0;
    std::uint32_t start_generation = 0;  // last finished when the session began
    std::uint32_t unused = 0;
    std::uint64_t rows_received = 0;  // ring rows of all launches
    std::uint64_t blocks_received = 0;
};

// Offsets into local memory. Trivially copyable: kernels get it by value.
struct LocalMemory {
    std::uint64_t ring_x = 0;  // ring blocks of x, see ChunkedRows
    std::uint64_t ring_x_scale = 0;
    std::uint64_t ring_origin = 0;  // (ring rows) Origin
    std::uint64_t ring_act = 0;     // second-GEMM activations
    std::uint64_t ring_act_scale = 0;
    std::uint64_t act_origin = 0;        // (ring rows) Origin
    std::uint64_t block_table = 0;       // (most table_blocks) u64
    std::uint64_t num_blocks = 0;        // u64
    std::uint64_t source_offset = 0;     // (num_ranks, experts_per_rank) u32: start in recv_slot
    std::uint64_t source_count = 0;      // (num_ranks, experts_per_rank) u32: this launch's counts
    std::uint64_t rows_left = 0;         // (num_ranks) u32, monotone
    std::uint64_t rows_left_target = 0;  // (num_ranks) u32
    std::uint64_t statistics = 0;        // (experts_per_rank) u64 rows received since creation
    std::uint64_t state = 0;             // StateWords
    std::uint64_t stall_report = 0;      // StallReport
    std::uint64_t shared_act = 0;        // (max_tokens, shared_inter) e4m3, natural K order
    std::uint64_t shared_act_scale = 0;  // (max_tokens, shared_inter / 128) words
    std::uint64_t shared_row = 0;        // (max_tokens, hidden) bf16
    std::uint64_t shared_ready = 0;      // (max row blocks) u32
    std::uint64_t capture_act = 0;  // (num_ranks * max_tokens * topk, inter) e4m3, natural order
    std::uint64_t capture_act_scale = 0;  // (num_ranks * max_tokens * topk, inter / 128) words
    std::uint64_t bytes = 0;
    std::uint32_t shared_blocks = 0;  // entries of shared_ready
    std::uint32_t has_capture = 0;
};
static_assert(std::is_trivially_copyable_v<PlanMemory>);
static_assert(std::is_trivially_copyable_v<LocalMemory>);

// Smallest row block: one wgmma N step. shared_ready has one entry per so many tokens.
inline constexpr int kMinRowBlock = 8;

// Most blocks that a launch can need: every slot of every rank lands here, every expert ends in a
// partly filled block.
constexpr std::uint64_t most_blocks(std::uint64_t num_ranks, std::uint64_t max_tokens,
                                    std::uint64_t topk, std::uint64_t experts_per_rank,
                                    std::uint64_t row_block) {
    const std::uint64_t slots = num_ranks * max_tokens * topk;
    const std::uint64_t experts = slots < experts_per_rank ? slots : experts_per_rank;
    return (slots + experts * (row_block - 1)) / row_block;
}

struct LocalOptions {
    int max_tokens = 0;
    bool capture = false;  // keep every slot's second-GEMM input for the judge
};

// Lays out local memory and fills the signal offsets and table_blocks of `plans` (sizes set
// before).
LocalMemory make_local_memory(const Shape& shape, const LocalOptions& options,
                              std::vector<PlanMemory>* plans, RegionList* list);

}  // namespace gcmoe::layout
