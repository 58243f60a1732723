// Who and when: special registers, pauses, register budgets.
#pragma once

#include <cstdint>

namespace gcmoe::cuda::ptx {

__device__ __forceinline__ std::uint32_t thread_idx() { return threadIdx.x; }
__device__ __forceinline__ std::uint32_t num_threads() { return blockDim.x; }
__device__ __forceinline__ std::uint32_t cta_idx() { return blockIdx.x; }
__device__ __forceinline__ std::uint32_t num_ctas() { return gridDim.x; }

__device__ __forceinline__ std::uint32_t sm_id() {
    std::uint32_t id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

// Nanoseconds since some start; the same clock on all SMs of a device, resolution about 1 us or
// better.
__device__ __forceinline__ std::uint64_t global_timer_ns() {
    std::uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__device__ __forceinline__ void sleep_ns(std::uint32_t ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

// The kernel that was launched to follow this one may begin where this grid's CTAs have ended, once
// all of them have said so or ended.
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Registers per thread of this warpgroup from here on. All warps of the warpgroup call it.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace gcmoe::cuda::ptx
