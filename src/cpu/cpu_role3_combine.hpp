// Role 3 on the CPU: top-k partial sums and the shared expert's part.
//
// Runs after roles 1 and 2 of its rank, or (CombineOn::kDispatch) as the end of role 1. Waits for
// `done` of every peer (system scope). Reads: own combine rows, shared rows, topk_idx. Writes: y;
// the last unit moves the state to the next launch.
#pragma once

#include <cstdint>

#include "cpu/cpu_launch.hpp"
#include "cpu/launch_order.hpp"
#include "cpu/work_log.hpp"
#include "protocol/done.hpp"
#include "protocol/generation.hpp"
#include "protocol/shared_ready.hpp"

namespace gcmoe::cpu {

// y of one token: FP32 sum over its used slots in slot order, then the shared row, one BF16
// rounding.
void combine_token(const CpuLaunch& cpu, std::uint32_t token, Scratch* scratch);

// One unit of role 3: tokens unit, unit + units, ... Returns false if it left early.
template <protocol::SignalMemory M>
bool role3_combine(const CpuLaunch& cpu, std::uint32_t unit) {
    UnitTimes& times = cpu.combine_times[unit];
    times = UnitTimes{};
    times.begin_ns = M::clock_ns();
    const layout::RankMemory& memory = cpu.memory;
    protocol::Launch launch;
    if (!protocol::begin_launch<M>(memory, Role::kCombine, unit, cpu.wait_limit_ns, &launch))
        return false;
    const bool on_dispatch = memory.plan.combine_on == layout::CombineOn::kDispatch;
    trace::UnitLog* logs = on_dispatch ? cpu.dispatch_logs : cpu.compute_logs;
    if (logs != nullptr) launch.log = logs + unit;
    for (std::uint32_t i = 0; i < memory.heap.num_ranks; ++i) {
        const std::uint32_t peer = (memory.rank() + i) % memory.heap.num_ranks;
        if (!protocol::wait_done<M>(memory, launch, peer)) return false;
    }
    if (!protocol::wait_shared_rows<M>(memory, launch)) return false;
    Scratch* scratch = on_dispatch ? cpu.dispatch_scratch : cpu.compute_scratch;
    const std::uint64_t work_ns = begin_work<M>(launch);
    for (std::uint32_t token = unit; token < launch.num_tokens;
         token += memory.plan.combine_units()) {
        combine_token(cpu, token, &scratch[unit]);
    }
    end_work<M>(launch, work_ns, {.kind = trace::Kind::kCombine, .task = unit});
    const std::uint32_t num_blocks = protocol::low_word(M::load_acquire(memory.num_blocks()));
    const schedule::TaskOrder order = task_order(cpu, num_blocks, launch.num_tokens);
    if (unit == 0 && memory.shared_chunks != 0)
        protocol::top_up_shared<M>(memory, order.shared_blocks);
    const protocol::DealtTasks dealt{.tasks = schedule::num_tasks(order)};
    if (!protocol::end_launch<M>(memory, launch, num_blocks, dealt)) return false;
    times.end_ns = M::clock_ns();
    return true;
}

}  // namespace gcmoe::cpu
