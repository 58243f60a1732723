// Which tasks a launch has: roles 2 and 3 must agree on it.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "cpu/cpu_launch.hpp"
#include "schedule/task_order.hpp"

namespace gcmoe::cpu {

// The order of this launch's tasks, once num_blocks is known.
inline schedule::TaskOrder task_order(const CpuLaunch& cpu, std::uint32_t num_blocks,
                                      std::uint32_t num_tokens) {
    const layout::RankMemory& memory = cpu.memory;
    schedule::TaskOrder order;
    order.num_blocks = num_blocks;
    order.n1 = memory.plan.n1;
    order.n2 = memory.plan.n2;
    order.lead = cpu.lead_blocks;
    order.shared_n1 = memory.shared_chunks;
    if (memory.shared_chunks != 0)
        order.shared_blocks = ceil_div(num_tokens, memory.plan.row_block);
    return order;
}

}  // namespace gcmoe::cpu
