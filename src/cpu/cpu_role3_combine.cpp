#include "cpu/cpu_role3_combine.hpp"

#include <algorithm>

#include "cpu/row_kernels.hpp"

namespace gcmoe::cpu {

void combine_token(const CpuLaunch& cpu, std::uint32_t token, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const auto hidden = static_cast<std::size_t>(cpu.shape->hidden);
    scratch->sums.resize(hidden);
    float* sum = scratch->sums.data();
    std::fill_n(sum, hidden, 0.0F);
    for (std::uint32_t k = 0; k < memory.heap.topk; ++k) {
        const std::uint64_t slot = std::uint64_t{token} * memory.heap.topk + k;
        const std::int64_t expert = memory.heap.expert_id(memory.own_heap(), slot);
        if (expert < 0 || expert >= cpu.shape->num_experts) continue;
        add_bf16_row(memory.heap.combine_row(memory.own_heap(), slot), hidden, sum);
    }
    if (memory.shared_chunks != 0) {
        add_bf16_row(memory.at<std::uint16_t>(memory.local.shared_row) + token * hidden, hidden,
                     sum);
    }
    round_to_bf16(sum, hidden, cpu.y + static_cast<std::int64_t>(token) * cpu.y_stride);
}

}  // namespace gcmoe::cpu
