// Stand-in for src/cuda/ptx/copy.cuh: copies are done when they are issued.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/ptx/sync.cuh"

namespace gcmoe::cuda::ptx {

inline void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                      std::uint64_t* barrier) {
    std::memcpy(shared, global, bytes);
    mbarrier_complete(barrier, bytes);
}
inline void bulk_load_once(void* shared, const void* global, std::uint32_t bytes,
                           std::uint64_t* barrier, std::uint64_t) {
    bulk_load(shared, global, bytes, barrier);
}
inline void bulk_prefetch(const void*, std::uint32_t) {}
inline void prefetch_line(const void*) {}
inline std::uint64_t evict_first_policy() { return 0; }

struct alignas(16) Words4 {
    std::uint32_t w[4];
};

template <class T>
T load_shared(std::uint32_t address) {
    T value;
    std::memcpy(&value, host_stub::here().cta->shared + address, sizeof(value));
    return value;
}
inline Words4 load_shared_16(std::uint32_t address) { return load_shared<Words4>(address); }
inline std::uint32_t load_shared_byte(std::uint32_t address) {
    return load_shared<std::uint8_t>(address);
}
inline std::uint32_t load_shared_word(std::uint32_t address) {
    return load_shared<std::uint32_t>(address);
}

struct alignas(8) Floats2 {
    float f[2];
};

inline Floats2 load_shared_floats(std::uint32_t address) { return load_shared<Floats2>(address); }

}  // namespace gcmoe::cuda::ptx
