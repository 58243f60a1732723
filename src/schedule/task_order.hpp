// The one total order of role 2's tasks. Workers take tickets in order; a task waits only for
// earlier tasks and for role 1, so nothing can deadlock however few workers run.
//
// Order: the shared expert's first GEMM, the first GEMMs of `lead` blocks, the shared expert's
// second GEMM, then alternately the second GEMM of block b and the first GEMM of block b + lead,
// then the remaining second GEMMs. Shared tasks stand where they fill waits, not behind everything:
// they need no row of role 1's, and their second GEMM has the first GEMMs between it and its
// inputs. lead <= B keeps the rule 'second GEMM of block b before first GEMM of block b + B' (R26).
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::schedule {

enum class TaskKind : std::uint8_t { kFirstGemm, kSecondGemm, kSharedFirst, kSharedSecond };

struct Task {
    TaskKind kind = TaskKind::kFirstGemm;
    std::uint32_t block = 0;  // ring block of the launch, or row block of the shared expert
    std::uint32_t index = 0;  // task in the block
};

struct TaskOrder {
    std::uint32_t num_blocks = 0;
    std::uint32_t n1 = 0;             // first-GEMM tasks per block
    std::uint32_t n2 = 0;             // second-GEMM tasks per block
    std::uint32_t lead = 1;           // blocks whose first GEMM runs ahead, 1..B
    std::uint32_t shared_blocks = 0;  // row blocks of the shared expert, 0 without one
    std::uint32_t shared_n1 = 0;      // shared first-GEMM tasks per row block
};

GCMOE_HD constexpr std::uint64_t num_routed_tasks(const TaskOrder& order) {
    return std::uint64_t{order.num_blocks} * (order.n1 + order.n2);
}

GCMOE_HD constexpr std::uint64_t num_tasks(const TaskOrder& order) {
    return num_routed_tasks(order) +
           std::uint64_t{order.shared_blocks} * (order.shared_n1 + order.n2);
}

struct Split {
    std::uint32_t block = 0;
    std::uint32_t index = 0;
};

// Quotient and rest. A GPU divides 32 bits several times as fast as 64, and tickets are small.
GCMOE_HD constexpr Split split(std::uint64_t ticket, std::uint32_t tasks_per_block) {
    if (ticket <= 0xFFFFFFFFULL) {
        const auto small = static_cast<std::uint32_t>(ticket);
        return {small / tasks_per_block, small % tasks_per_block};
    }
    return {static_cast<std::uint32_t>(ticket / tasks_per_block),
            static_cast<std::uint32_t>(ticket % tasks_per_block)};
}

GCMOE_HD constexpr Task split_task(TaskKind kind, std::uint64_t ticket,
                                   std::uint32_t tasks_per_block, std::uint32_t first_block) {
    const Split at = split(ticket, tasks_per_block);
    return {kind, first_block + at.block, at.index};
}

// With role 4 the shared expert's tasks are an order of their own.
GCMOE_HD constexpr TaskOrder routed_part(TaskOrder order) {
    order.shared_blocks = 0;
    return order;
}
GCMOE_HD constexpr TaskOrder shared_part(TaskOrder order) {
    order.num_blocks = 0;
    return order;
}

// The task of a ticket, 0 <= ticket < num_tasks(order).
GCMOE_HD constexpr Task task_at(const TaskOrder& order, std::uint64_t ticket) {
    const std::uint64_t shared_first = std::uint64_t{order.shared_blocks} * order.shared_n1;
    if (ticket < shared_first)
        return split_task(TaskKind::kSharedFirst, ticket, order.shared_n1, 0);
    ticket -= shared_first;
    const std::uint32_t lead = order.lead < order.num_blocks ? order.lead : order.num_blocks;
    const std::uint64_t ahead = std::uint64_t{lead} * order.n1;
    if (ticket < ahead) return split_task(TaskKind::kFirstGemm, ticket, order.n1, 0);
    ticket -= ahead;
    const std::uint64_t shared_second = std::uint64_t{order.shared_blocks} * order.n2;
    if (ticket < shared_second) return split_task(TaskKind::kSharedSecond, ticket, order.n2, 0);
    ticket -= shared_second;
    const std::uint64_t pair = order.n2 + order.n1;
    const std::uint64_t alternating = std::uint64_t{order.num_blocks - lead} * pair;
    if (ticket < alternating) {
        const auto block = static_cast<std::uint32_t>(ticket / pair);
        const auto within = static_cast<std::uint32_t>(ticket % pair);
        if (within < order.n2) return {TaskKind::kSecondGemm, block, within};
        return {TaskKind::kFirstGemm, block + lead, within - order.n2};
    }
    ticket -= alternating;
    return split_task(TaskKind::kSecondGemm, ticket, order.n2, order.num_blocks - lead);
}

// Proves the order rule for a plan: every task once, each second GEMM after its first GEMM, and the
// second GEMM of block b before the first GEMM of block b + ring_blocks. Errors: kBadConfig naming
// the pair.
Status check_task_order(const TaskOrder& order, std::uint32_t ring_blocks);

}  // namespace gcmoe::schedule
