#include "cpu/cpu_role1_dispatch.hpp"

namespace gcmoe::cpu {

void copy_row(const CpuLaunch& cpu, std::uint32_t source, std::uint32_t slot, std::uint32_t place,
              std::uint32_t row) {
    const layout::RankMemory& memory = cpu.memory;
    std::uint8_t* heap = memory.peers.heap(static_cast<int>(source));
    const std::uint32_t token = slot / memory.heap.topk;
    const std::uint8_t* codes = memory.heap.x_row(heap, token);
    const std::uint32_t* scales = memory.heap.x_scale_row(heap, token);
    const layout::ChunkedRows ring = memory.ring_x();
    for (std::uint32_t c = 0; c < memory.hidden_chunks; ++c) {
        layout::store_chunk_row(ring.chunk(place, c), static_cast<int>(row), cpu.weights->order,
                                codes + std::size_t{c} * layout::kChunk);
        ring.scale(place, c)[row] = scales[c];
    }
    memory.ring_origins(place)[row] =
        layout::Origin{source, slot, memory.heap.weight(heap)[slot], 0};
}

}  // namespace gcmoe::cpu
