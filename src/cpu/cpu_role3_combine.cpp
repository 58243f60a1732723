#include "cpu/cpu_role3_combine.hpp"

#include "numerics/bf16.hpp"

namespace gcmoe::cpu {

void combine_token(const CpuLaunch& cpu, std::uint32_t token, Scratch* scratch) {
    const layout::RankMemory& memory = cpu.memory;
    const auto hidden = static_cast<std::size_t>(cpu.shape->hidden);
    scratch->sums.assign(hidden, 0.0F);
    float* sum = scratch->sums.data();
    for (std::uint32_t k = 0; k < memory.heap.topk; ++k) {
        const std::uint64_t slot = std::uint64_t{token} * memory.heap.topk + k;
        const std::int64_t expert = memory.heap.expert_id(memory.own_heap(), slot);
        if (expert < 0 || expert >= cpu.shape->num_experts) continue;
        const std::uint16_t* row = memory.heap.combine_row(memory.own_heap(), slot);
        for (std::size_t i = 0; i < hidden; ++i) sum[i] += numerics::bf16_to_float(row[i]);
    }
    if (memory.shared_chunks != 0) {
        const std::uint16_t* row =
            memory.at<std::uint16_t>(memory.local.shared_row) + token * hidden;
        for (std::size_t i = 0; i < hidden; ++i) sum[i] += numerics::bf16_to_float(row[i]);
    }
    std::uint16_t* y = cpu.y + static_cast<std::int64_t>(token) * cpu.y_stride;
    for (std::size_t i = 0; i < hidden; ++i) y[i] = numerics::bf16_from_float(sum[i]);
}

}  // namespace gcmoe::cpu
