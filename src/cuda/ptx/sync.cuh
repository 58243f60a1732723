// Barriers, fences and shuffles inside a CTA.
#pragma once

#include <cstdint>

namespace gcmoe::cuda::ptx {

// 32-bit address of shared memory, as asm operands want it.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void cta_barrier() { __syncthreads(); }
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

// True in one lane of a converged warp, the same one every time. Bulk copies behind this condition
// need no loop over lanes, which the compiler makes for any other one.
__device__ __forceinline__ bool elect_one() {
    std::uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
}

// Named barrier among `threads` threads (a multiple of 32); 0 is cta_barrier's.
__device__ __forceinline__ void named_barrier(std::uint32_t id, std::uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
template <class T>
__device__ __forceinline__ T shuffle(T value, int lane) {
    return __shfl_sync(0xFFFFFFFFU, value, lane);
}

// From the lane `lanes` below; lanes below `lanes` keep their own value.
template <class T>
__device__ __forceinline__ T shuffle_up(T value, std::uint32_t lanes) {
    return __shfl_up_sync(0xFFFFFFFFU, value, lanes);
}

// The sum over the warp.
__device__ __forceinline__ std::uint32_t warp_sum(std::uint32_t value) {
    return __reduce_add_sync(0xFFFFFFFFU, value);
}

// The largest value of the warp.
__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t value) {
    return __reduce_max_sync(0xFFFFFFFFU, value);
}

// *word = max(*word, value), a word of shared memory.
__device__ __forceinline__ void shared_max(std::uint32_t* word, std::uint32_t value) {
    asm volatile("red.relaxed.cta.shared::cta.max.u32 [%0], %1;" ::"r"(shared_address(word)),
                 "r"(value)
                 : "memory");
}

__device__ __forceinline__ std::uint32_t ballot(bool condition) {
    return __ballot_sync(0xFFFFFFFFU, condition);
}
// Lanes of the warp whose value equals this lane's.
__device__ __forceinline__ std::uint32_t match_any(std::uint32_t value) {
    return __match_any_sync(0xFFFFFFFFU, value);
}

// Orders this thread's ordinary accesses before later accesses of the copy engine or the tensor
// cores.
__device__ __forceinline__ void fence_async_proxy_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

// ---- mbarriers in shared memory
__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t address) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
    mbarrier_arrive(shared_address(barrier));
}
// Arrives, and lets the phase wait for `bytes` more bytes of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t* barrier,
                                                       std::uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
// Lets the current phase wait for `bytes` more bytes; an arrival must still be missing.
__device__ __forceinline__ void mbarrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
// One bounded try: true if the phase with this parity has completed.
__device__ __forceinline__ bool mbarrier_try_wait(std::uint32_t address, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
    return done != 0;
}
__device__ __forceinline__ bool mbarrier_try_wait(std::uint64_t* barrier, std::uint32_t parity) {
    return mbarrier_try_wait(shared_address(barrier), parity);
}

}  // namespace gcmoe::cuda::ptx
