// Moving bytes: bulk copies by the copy engine, wide loads and stores.
#pragma once

#include <cstdint>

#include "cuda/ptx/sync.cuh"

namespace gcmoe::cuda::ptx {

// Global to shared; `bytes` a multiple of 16, both ends 16-byte aligned; completes on `barrier`.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The same for bytes that are read once: they leave the L2 first.
__device__ __forceinline__ void bulk_load_once(void* shared, const void* global,
                                               std::uint32_t bytes, std::uint64_t* barrier,
                                               std::uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}

// Asks the L2 for `bytes`, a multiple of 16, from a 16-byte aligned address; nothing completes.
__device__ __forceinline__ void bulk_prefetch(const void* global, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// The line into the L2.
__device__ __forceinline__ void prefetch_line(const void* global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Cache policy for bulk_load_once.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
    std::uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

struct alignas(16) Words4 {
    std::uint32_t w[4];
};

__device__ __forceinline__ Words4 load_shared_16(std::uint32_t address) {
    Words4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "r"(address));
    return v;
}
__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t address) {
    std::uint32_t value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
    std::uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}

struct alignas(8) Floats2 {
    float f[2];
};

__device__ __forceinline__ Floats2 load_shared_floats(std::uint32_t address) {
    Floats2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.f[0]), "=f"(v.f[1]) : "r"(address));
    return v;
}

}  // namespace gcmoe::cuda::ptx
