// Scoped accesses to signal words: relaxed and acquire loads, release stores, adds and xors. One
// instruction each. `gpu`: units of one device; `sys`: also peers over NVLink and the host.
#pragma once

#include <cstdint>

namespace gcmoe::cuda::ptx {

#define GCMOE_PTX_LOAD(name, order, bits, constraint)                                      \
    __device__ __forceinline__ std::uint##bits##_t name(const std::uint##bits##_t* word) { \
        std::uint##bits##_t value;                                                         \
        asm volatile("ld." order ".global.u" #bits " %0, [%1];"                            \
                     : "=" constraint(value)                                               \
                     : "l"(word)                                                           \
                     : "memory");                                                          \
        return value;                                                                      \
    }

#define GCMOE_PTX_UPDATE(name, instruction, bits, constraint)                                    \
    __device__ __forceinline__ void name(std::uint##bits##_t* word, std::uint##bits##_t value) { \
        asm volatile(instruction " [%0], %1;" ::"l"(word), constraint(value) : "memory");        \
    }

#define GCMOE_PTX_FETCH(name, instruction, bits, constraint)                         \
    __device__ __forceinline__ std::uint##bits##_t name(std::uint##bits##_t* word,   \
                                                        std::uint##bits##_t value) { \
        std::uint##bits##_t old;                                                     \
        asm volatile(instruction " %0, [%1], %2;"                                    \
                     : "=" constraint(old)                                           \
                     : "l"(word), constraint(value)                                  \
                     : "memory");                                                    \
        return old;                                                                  \
    }

GCMOE_PTX_LOAD(load_relaxed_gpu, "relaxed.gpu", 32, "r")
GCMOE_PTX_LOAD(load_relaxed_gpu, "relaxed.gpu", 64, "l")
GCMOE_PTX_LOAD(load_relaxed_sys, "relaxed.sys", 32, "r")
GCMOE_PTX_LOAD(load_relaxed_sys, "relaxed.sys", 64, "l")
GCMOE_PTX_LOAD(load_acquire_gpu, "acquire.gpu", 32, "r")
GCMOE_PTX_LOAD(load_acquire_gpu, "acquire.gpu", 64, "l")
GCMOE_PTX_LOAD(load_acquire_sys, "acquire.sys", 32, "r")
GCMOE_PTX_LOAD(load_acquire_sys, "acquire.sys", 64, "l")

GCMOE_PTX_UPDATE(store_release_gpu, "st.release.gpu.global.u32", 32, "r")
GCMOE_PTX_UPDATE(store_release_gpu, "st.release.gpu.global.u64", 64, "l")
GCMOE_PTX_UPDATE(store_release_sys, "st.release.sys.global.u32", 32, "r")
GCMOE_PTX_UPDATE(store_release_sys, "st.release.sys.global.u64", 64, "l")
GCMOE_PTX_UPDATE(add_release_gpu, "red.release.gpu.global.add.u32", 32, "r")
GCMOE_PTX_UPDATE(add_release_gpu, "red.release.gpu.global.add.u64", 64, "l")
GCMOE_PTX_UPDATE(add_release_sys, "red.release.sys.global.add.u32", 32, "r")
GCMOE_PTX_UPDATE(add_release_sys, "red.release.sys.global.add.u64", 64, "l")
GCMOE_PTX_UPDATE(xor_release_gpu, "red.release.gpu.global.xor.b64", 64, "l")
GCMOE_PTX_UPDATE(xor_release_sys, "red.release.sys.global.xor.b64", 64, "l")

GCMOE_PTX_FETCH(add_acq_rel_gpu, "atom.acq_rel.gpu.global.add.u32", 32, "r")
GCMOE_PTX_FETCH(add_acq_rel_gpu, "atom.acq_rel.gpu.global.add.u64", 64, "l")
GCMOE_PTX_FETCH(add_acq_rel_sys, "atom.acq_rel.sys.global.add.u32", 32, "r")
GCMOE_PTX_FETCH(add_acq_rel_sys, "atom.acq_rel.sys.global.add.u64", 64, "l")

#undef GCMOE_PTX_LOAD
#undef GCMOE_PTX_UPDATE
#undef GCMOE_PTX_FETCH

}  // namespace gcmoe::cuda::ptx
