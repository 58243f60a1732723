// Role 1's first act: it asks the L2 for what the launch's first microseconds will read.
//
// The weights of other layers have passed through the L2 since the last launch; each of these words
// is a miss of about 1 us then, and most are read one behind the other. Nothing here is waited for,
// and no value is used: a range that is not needed costs its bytes and nothing else.
#pragma once

#include <cstdint>

#include "cuda/device/gpu_launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/special.cuh"

namespace gcmoe::cuda::dispatch {

using device::GpuLaunch;

inline constexpr std::uint32_t kMostWarmTokens = 1024;  // 8 MB of rows at most

// One thread. The range is widened to whole 16 bytes, which never leaves its 128-byte line.
__device__ __forceinline__ void warm(const void* from, std::uint32_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{15};
    const std::uint64_t end = reinterpret_cast<std::uintptr_t>(from) + bytes;
    ptx::bulk_prefetch(reinterpret_cast<const void*>(first),
                       static_cast<std::uint32_t>((end - first + 15) & ~std::uint64_t{15}));
}

// One warp, before the launch is known: signals and tables, one a lane. The host has listed them:
// a dozen cases in code would come from memory themselves.
__device__ __forceinline__ void warm_tables(const GpuLaunch& gpu) {
    const std::uint32_t lane = ptx::thread_idx() % 32;
    if (lane >= device::kWarmRanges) return;
    const device::WarmRange& range = gpu.warm_ranges[lane];
    if (range.bytes != 0) warm(range.from, range.bytes);
}

// One warp of every CTA: the rank's own tokens, a lane a token. Peers pull them.
__device__ __forceinline__ void warm_tokens(const GpuLaunch& gpu, const Unit& unit,
                                            std::uint32_t num_tokens) {
    const layout::SymmetricHeap& heap = gpu.memory.heap;
    std::uint8_t* own = gpu.memory.own_heap();
    const std::uint32_t tokens = num_tokens < kMostWarmTokens ? num_tokens : kMostWarmTokens;
    const std::uint32_t stride = 32 * unit.num_units;
#pragma unroll 1
    for (std::uint32_t token = ptx::thread_idx() % 32 * unit.num_units + unit.idx; token < tokens;
         token += stride) {
        warm(heap.x_row(own, token), gpu.hidden);
        warm(heap.x_scale_row(own, token), 4 * gpu.memory.hidden_chunks);
        warm(heap.weight(own) + std::uint64_t{token} * heap.topk, 4 * heap.topk);
    }
}

}  // namespace gcmoe::cuda::dispatch
