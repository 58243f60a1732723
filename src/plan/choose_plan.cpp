#include "plan/choose_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/math.hpp"
#include "schedule/task_order.hpp"

namespace gcmoe::plan {
namespace {

// Rows that nearly every expert stays within when routing is uniform (mean and three standard
// deviations), in whole steps of 8: an expert that needs a second block has its weights read twice.
// Where 32 rows still hold 9 experts of 10, they are taken: kernels for more are slower (V4-Flash,
// 128 tokens, H200: 193 us with 32 rows, 199 with 40; GLM-5.2: 329 with 32, 282 with 48 and more).
int choose_row_block(const Shape& shape, int max_tokens) {
    const double slots = static_cast<double>(shape.num_ranks) * max_tokens * shape.topk;
    const double mean = slots / shape.num_experts;
    constexpr int kFastRows = 32;
    const double deviation = std::sqrt(mean);
    double most = mean + 3 * deviation;
    if (most > kFastRows && mean + 1.5 * deviation <= kFastRows) most = kFastRows;
    const auto rows = static_cast<int>(std::min(most, 1.0 * kMaxRowBlock));
    return std::clamp(round_up(std::max(rows, 1), kMinRowBlock), kMinRowBlock, kMaxRowBlock);
}

std::uint64_t blocks_of_launch(const Shape& shape, int max_tokens, int row_block) {
    const std::uint64_t blocks = layout::most_blocks(
        static_cast<std::uint64_t>(shape.num_ranks), static_cast<std::uint64_t>(max_tokens),
        static_cast<std::uint64_t>(shape.topk),
        static_cast<std::uint64_t>(shape.experts_per_rank()),
        static_cast<std::uint64_t>(row_block));
    return std::max<std::uint64_t>(blocks, 1);
}

// As many blocks as a launch needs, within ring_bytes (overlap off: all of them, it cannot run
// otherwise).
int choose_ring_blocks(const Shape& shape, int max_tokens, const PlanOptions& options,
                       std::uint64_t ring_bytes) {
    const std::uint64_t all = std::bit_ceil(blocks_of_launch(shape, max_tokens, options.row_block));
    if (!options.overlap) return static_cast<int>(all);
    const std::uint64_t block_bytes = static_cast<std::uint64_t>(options.row_block) *
                                      static_cast<std::uint64_t>(shape.hidden + shape.inter);
    const std::uint64_t fit = std::bit_floor(std::max<std::uint64_t>(ring_bytes / block_bytes, 2));
    return static_cast<int>(std::min(all, fit));
}

Status bad(const PlanOptions& options, const std::string& what) {
    return {Code::kBadConfig, fmt::format("plan '{}': {}", options.name, what)};
}

Status check_sizes(const Shape& shape, int max_tokens, const PlanOptions& options) {
    if (options.row_block % kMinRowBlock != 0 || options.row_block < kMinRowBlock ||
        options.row_block > kMaxRowBlock) {
        return bad(options,
                   fmt::format("row_block = {} must be a multiple of {} in {}..{}",
                               options.row_block, kMinRowBlock, kMinRowBlock, kMaxRowBlock));
    }
    if (options.ring_blocks < 1 || options.ring_blocks > kMaxRingBlocks ||
        !is_power_of_two(static_cast<std::uint64_t>(options.ring_blocks))) {
        return bad(options,
                   fmt::format("ring_blocks = {} must be a power of two in 1..{} (laps are "
                               "counted modulo 2^32)",
                               options.ring_blocks, kMaxRingBlocks));
    }
    // The GPU's tasks are 256 columns wide, also where hidden is 128.
    const int widest = std::max(shape.hidden, kGpuTaskColumns);
    if (options.second_columns % layout::kChunk != 0 || options.second_columns < layout::kChunk ||
        options.second_columns > widest) {
        return bad(options, fmt::format("second_columns = {} must be a multiple of {} in {}..{} "
                                        "(hidden = {})",
                                        options.second_columns, layout::kChunk, layout::kChunk,
                                        widest, shape.hidden));
    }
    if (options.lead_blocks < 1 || options.lead_blocks > options.ring_blocks) {
        return bad(options,
                   fmt::format("lead_blocks = {} must be in 1..ring_blocks = {} (else a block "
                               "waits for a later task)",
                               options.lead_blocks, options.ring_blocks));
    }
    const std::uint64_t rows_of_peer =
        static_cast<std::uint64_t>(max_tokens) * static_cast<std::uint64_t>(shape.topk);
    const int n2 = ceil_div(shape.hidden, options.second_columns);
    if (rows_of_peer * static_cast<std::uint64_t>(n2) >> 32 != 0) {
        return bad(options, fmt::format("second_columns = {} cuts hidden = {} into {} tasks: "
                                        "max_tokens * topk * {} = {} must be below 2^32 "
                                        "(rows_left counts in 32 bits)",
                                        options.second_columns, shape.hidden, n2, n2,
                                        rows_of_peer * static_cast<std::uint64_t>(n2)));
    }
    const std::uint64_t all = blocks_of_launch(shape, max_tokens, options.row_block);
    if (!options.overlap && static_cast<std::uint64_t>(options.ring_blocks) < all) {
        return bad(options,
                   fmt::format("overlap off needs ring_blocks >= {} (most blocks of a launch), "
                               "not {}: role 1 must end before role 2 frees a block",
                               all, options.ring_blocks));
    }
    return {};
}

Status check_units(const PlanOptions& options, const Machine& machine) {
    const Status status = validate(options.partition, machine.limits, machine.units_of_share);
    if (!status.ok()) return bad(options, status.message());
    const std::int64_t dispatch = options.partition.dispatch_units;
    const std::int64_t compute = options.partition.compute_units;
    if (dispatch + compute <= kMaxUnits) return {};
    return bad(options, fmt::format("dispatch_units + compute_units = {} + {} must be at most {} "
                                    "(units of one rank)",
                                    dispatch, compute, kMaxUnits));
}

Status check_kernel(const Machine& machine, const PlanOptions& options) {
    if (options.placement > SmPlacement::kByGpc) {
        return bad(options, fmt::format("placement = {} is unknown; known are 0..2",
                                        static_cast<int>(options.placement)));
    }
    if (options.placement != SmPlacement::kBalanced && !machine.has_sms) {
        return bad(options,
                   fmt::format("placement = {}, which only the GPU backend has: CPU "
                               "threads are not tied to cores",
                               options.placement == SmPlacement::kInOrder ? "in order" : "by GPC"));
    }
    if (options.shared_experts == SharedExperts::kRole4 && !machine.has_role4) {
        return bad(options, "shared_experts = role 4, which only the GPU backend has");
    }
    if ((options.combine == CombineUnits::kAll || options.combine == CombineUnits::kFollow) &&
        !machine.has_follow) {
        return bad(options, fmt::format("combine = {}, which only the GPU backend has",
                                        options.combine == CombineUnits::kAll ? "all" : "follow"));
    }
    if (options.shared_experts == SharedExperts::kRole4 &&
        options.combine != CombineUnits::kCompute) {
        return bad(options,
                   "shared_experts = role 4 needs combine = compute: role 4 starts when role 1 has "
                   "ended, and nothing but the stream orders the combine behind it");
    }
    if (machine.second_columns == 0 || options.second_columns == machine.second_columns) return {};
    return bad(options, fmt::format("second_columns = {} must be {} (the GPU kernel's task width)",
                                    options.second_columns, machine.second_columns));
}

void fill_second_columns(const Shape& shape, const Machine& machine, PlanOptions* options) {
    if (options->second_columns != 0) return;
    const int widest = shape.hidden % 256 == 0 ? 256 : 128;
    options->second_columns = machine.second_columns != 0 ? machine.second_columns : widest;
}

// After the partition and the task width are known.
void fill_lead(const Shape& shape, const Machine& machine, PlanOptions* options) {
    if (options->lead_blocks != 0) return;
    std::int64_t lead = 2;
    if (machine.lead_tasks_per_unit != 0 && options->second_columns > 0) {
        const std::int64_t tasks_per_block =
            shape.inter / layout::kChunk + ceil_div(shape.hidden, options->second_columns);
        const std::int64_t units = options->partition.compute_units;
        lead = ceil_div(machine.lead_tasks_per_unit * units, tasks_per_block);
    }
    const std::int64_t most = std::max(options->ring_blocks, 1);
    options->lead_blocks = static_cast<int>(std::clamp<std::int64_t>(lead, 1, most));
}

layout::CombineOn combine_on(CombineUnits units) {
    switch (units) {
        case CombineUnits::kFollow:
            return layout::CombineOn::kFollow;
        case CombineUnits::kDispatch:
            return layout::CombineOn::kDispatch;
        case CombineUnits::kAll:
            return layout::CombineOn::kAll;
        case CombineUnits::kAuto:
        case CombineUnits::kCompute:
            break;
    }
    return layout::CombineOn::kCompute;
}

// After the partition is known.
void fill_combine(const Machine& machine, int max_tokens, PlanOptions* options) {
    if (options->combine != CombineUnits::kAuto) return;
    const std::int64_t most =
        std::int64_t{machine.combine_tokens_per_unit} * options->partition.dispatch_units;
    if (options->shared_experts == SharedExperts::kRole4) {
        options->combine = CombineUnits::kCompute;
    } else if (max_tokens <= most) {
        options->combine = CombineUnits::kDispatch;
    } else {
        options->combine = machine.has_follow ? CombineUnits::kFollow : CombineUnits::kCompute;
    }
}

// Both open: the machine's defaults. One open: the rest of the share, or the floor.
void fill_partition(const Machine& machine, Partition* partition) {
    const int share = machine.units_of_share;
    if (partition->dispatch_units == 0 && partition->compute_units == 0) {
        partition->dispatch_units = machine.default_dispatch;
        partition->compute_units = machine.default_compute;
    }
    if (partition->dispatch_units == 0) {
        partition->dispatch_units =
            share != 0 ? share - partition->compute_units : machine.limits.min_dispatch;
    }
    if (partition->compute_units == 0) {
        partition->compute_units = share != 0 ? share - partition->dispatch_units
                                              : std::max(machine.limits.min_compute, 2);
    }
}

// The order of a ring of at most 64 blocks with the same relation of lead_blocks to ring_blocks.
// The rule depends on lead, B, n1 and n2 only, and 3 B blocks show every case; of the real B (up to
// 2^20) they would be too many to walk through, and any fixed number of blocks below B would hold
// no pair (b, b + B) and prove nothing. What decides is the lead's distance from 1 and from B: the
// nearer one is kept.
schedule::TaskOrder scaled_order(const Shape& shape, const backend::Plan& plan,
                                 std::uint32_t* ring_blocks) {
    constexpr std::uint32_t kScaledRing = 64;
    const std::uint32_t real = plan.memory.ring_blocks;
    const std::uint32_t ring = std::min(real, kScaledRing);
    std::uint32_t lead = plan.lead_blocks;
    if (ring < real && lead > ring / 2) {
        const std::uint32_t over = lead > real ? std::min(lead - real, ring) : 0;
        const std::uint32_t under = lead < real ? std::min(real - lead, ring / 2) : 0;
        lead = ring + over - under;
    }
    schedule::TaskOrder order;
    order.num_blocks = 3 * ring;
    order.n1 = plan.memory.n1;
    order.n2 = plan.memory.n2;
    order.lead = lead;
    order.shared_blocks = shape.shared_inter == 0 ? 0 : 2;
    order.shared_n1 = static_cast<std::uint32_t>(shape.shared_inter / layout::kChunk);
    *ring_blocks = ring;
    return order;
}

}  // namespace

Status choose_plan(const Shape& shape, int max_tokens, const PlanOptions& options,
                   const Machine& machine, backend::Plan* plan) {
    PlanOptions filled = options;
    if (filled.row_block == 0) filled.row_block = choose_row_block(shape, max_tokens);
    if (filled.row_block < 1) return check_sizes(shape, max_tokens, filled);
    if (filled.ring_blocks == 0) {
        filled.ring_blocks = choose_ring_blocks(shape, max_tokens, filled, machine.ring_bytes);
    }
    fill_second_columns(shape, machine, &filled);
    fill_partition(machine, &filled.partition);
    fill_lead(shape, machine, &filled);
    fill_combine(machine, max_tokens, &filled);
    GCMOE_RETURN_IF_ERROR(check_sizes(shape, max_tokens, filled));
    GCMOE_RETURN_IF_ERROR(check_kernel(machine, filled));
    GCMOE_RETURN_IF_ERROR(check_units(filled, machine));

    plan->name = filled.name;
    plan->lead_blocks = static_cast<std::uint32_t>(filled.lead_blocks);
    plan->overlap = filled.overlap;
    plan->placement = filled.placement;
    plan->has_role4 = filled.shared_experts == SharedExperts::kRole4 && shape.shared_inter > 0;
    layout::PlanMemory& memory = plan->memory;
    memory.row_block = static_cast<std::uint32_t>(filled.row_block);
    memory.ring_blocks = static_cast<std::uint32_t>(filled.ring_blocks);
    memory.n1 = static_cast<std::uint32_t>(shape.inter / layout::kChunk);
    memory.n2 = static_cast<std::uint32_t>(ceil_div(shape.hidden, filled.second_columns));
    memory.second_columns = static_cast<std::uint32_t>(filled.second_columns);
    memory.dispatch_units = static_cast<std::uint32_t>(filled.partition.dispatch_units);
    memory.compute_units = static_cast<std::uint32_t>(filled.partition.compute_units);
    memory.combine_on = combine_on(filled.combine);
    std::uint32_t ring_blocks = 0;
    const schedule::TaskOrder order = scaled_order(shape, *plan, &ring_blocks);
    return schedule::check_task_order(order, ring_blocks);
}

}  // namespace gcmoe::plan
