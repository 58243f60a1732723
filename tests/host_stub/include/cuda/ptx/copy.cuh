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
inline std::uint64_t evict_first_policy() { return 0; }

struct alignas(16) Words4 {
    std::uint32_t w[4];
};

inline Words4 load_shared_16(const void* shared) {
    Words4 words;
    std::memcpy(&words, shared, sizeof(words));
    return words;
}

struct alignas(8) Floats2 {
    float f[2];
};

inline Floats2 load_shared_floats(const void* shared) {
    Floats2 pair;
    std::memcpy(&pair, shared, sizeof(pair));
    return pair;
}

}  // namespace gcmoe::cuda::ptx
