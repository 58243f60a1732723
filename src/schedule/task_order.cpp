#include "schedule/task_order.hpp"

#include <fmt/format.h>

#include <vector>

namespace gcmoe::schedule {
namespace {

// First and last ticket of every (kind, block), and how many tasks it has.
struct Spans {
    std::vector<std::uint64_t> first;
    std::vector<std::uint64_t> last;
    std::vector<std::uint32_t> seen;

    explicit Spans(std::size_t blocks)
        : first(blocks, ~std::uint64_t{0}), last(blocks), seen(blocks) {}
    bool note(const Task& task, std::uint64_t ticket) {
        if (task.block >= first.size() || task.index != seen[task.block]++) return false;
        if (ticket < first[task.block]) first[task.block] = ticket;
        last[task.block] = ticket;
        return true;
    }
};

Status check_pairs(const TaskOrder& order, std::uint32_t ring_blocks, const Spans& one,
                   const Spans& two) {
    for (std::uint32_t b = 0; b < order.num_blocks; ++b) {
        if (one.seen[b] != order.n1 || two.seen[b] != order.n2) {
            return {Code::kBadConfig,
                    fmt::format("task order: block {} has {} + {} tasks, not {} + {}", b,
                                one.seen[b], two.seen[b], order.n1, order.n2)};
        }
        if (two.first[b] < one.last[b]) {
            return {
                Code::kBadConfig,
                fmt::format("task order: second GEMM of block {} stands before its first GEMM", b)};
        }
        const std::uint64_t next = std::uint64_t{b} + ring_blocks;
        if (next < order.num_blocks && two.last[b] > one.first[next]) {
            return {Code::kBadConfig,
                    fmt::format(
                        "task order: lead_blocks {} with ring_blocks {}: first GEMM of block {} "
                        "stands before the second GEMM of block {}",
                        order.lead, ring_blocks, next, b)};
        }
    }
    return {};
}

}  // namespace

Status check_task_order(const TaskOrder& order, std::uint32_t ring_blocks) {
    Spans one(order.num_blocks);
    Spans two(order.num_blocks);
    Spans shared_one(order.shared_blocks);
    Spans shared_two(order.shared_blocks);
    for (std::uint64_t ticket = 0; ticket < num_tasks(order); ++ticket) {
        const Task task = task_at(order, ticket);
        Spans* spans = &one;
        if (task.kind == TaskKind::kSecondGemm) spans = &two;
        if (task.kind == TaskKind::kSharedFirst) spans = &shared_one;
        if (task.kind == TaskKind::kSharedSecond) spans = &shared_two;
        if (!spans->note(task, ticket)) {
            return {Code::kBadConfig,
                    fmt::format("task order: ticket {} repeats or skips task {} of block {}",
                                ticket, task.index, task.block)};
        }
    }
    for (std::uint32_t b = 0; b < order.shared_blocks; ++b) {
        if (shared_two.first[b] < shared_one.last[b]) {
            return {Code::kBadConfig,
                    fmt::format("task order: shared second GEMM of row block {} stands "
                                "before its first GEMM",
                                b)};
        }
    }
    return check_pairs(order, ring_blocks, one, two);
}

}  // namespace gcmoe::schedule
