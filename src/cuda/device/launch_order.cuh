// The order of a launch's tasks, as roles 2, 3 and 4 need it.
#pragma once

#include "base/math.hpp"
#include "cuda/device/gpu_launch.cuh"
#include "schedule/task_order.hpp"

namespace gcmoe::cuda::device {

GCMOE_HD inline schedule::TaskOrder task_order(const GpuLaunch& gpu, std::uint32_t num_blocks,
                                               std::uint32_t num_tokens) {
    const layout::RankMemory& memory = gpu.memory;
    schedule::TaskOrder order;
    order.num_blocks = num_blocks;
    order.n1 = memory.plan.n1;
    order.n2 = memory.plan.n2;
    order.lead = gpu.lead_blocks;
    order.shared_n1 = memory.shared_chunks;
    if (memory.shared_chunks != 0) {
        order.shared_blocks = ceil_div(num_tokens, memory.plan.row_block);
    }
    return order;
}

}  // namespace gcmoe::cuda::device
