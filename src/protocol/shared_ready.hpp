// The shared expert's hand-over. It does not use the ring: rows come from the rank's own x.
//
// shared_ready[row block] gains n1_s a generation, so that after generation g it stands at g * n1_s
// modulo 2^32, whatever the number of tokens was: row blocks without tokens are topped up by
// role 3.
#pragma once

#include <cstdint>

#include "protocol/wait.hpp"

namespace gcmoe::protocol {

// Shared first GEMM: one of the n1_s tasks of a row block has written its activations.
template <SignalMemory M>
GCMOE_HD void commit_shared(const layout::RankMemory& memory, std::uint32_t row_block_idx) {
    M::add_release(memory.shared_ready(row_block_idx), 1U);
}

// Shared second GEMM: all n1_s tasks of the row block have (R30).
template <SignalMemory M>
[[nodiscard]] GCMOE_HD bool wait_shared(const layout::RankMemory& memory, const Launch& launch,
                                        std::uint32_t row_block_idx) {
    if (!keeps<M>(Rule::kWaitSharedReady)) return true;
    const std::uint32_t target = launch.generation * memory.shared_chunks;
    const WaitSite site{.signal = Signal::kSharedReady,
                        .expected = target,
                        .block = static_cast<std::int32_t>(row_block_idx)};
    const auto judge = [target](std::uint32_t value) { return judge_counter<M>(value, target); };
    return wait_for<M, M>(memory, launch, site, memory.shared_ready(row_block_idx), judge);
}

// Role 3, one unit: row blocks from `used` on had no tokens in this launch (R31).
template <SignalMemory M>
GCMOE_HD void top_up_shared(const layout::RankMemory& memory, std::uint32_t used) {
    if (!keeps<M>(Rule::kSharedTopUp)) return;
    GCMOE_NOT_UNROLLED
    for (std::uint32_t i = used; i < memory.local.shared_blocks; ++i) {
        M::add_release(memory.shared_ready(i), memory.shared_chunks);
    }
}

}  // namespace gcmoe::protocol
