// Stand-in for src/cuda/ptx/signal.cuh: fibers of one host thread need no atomics.
#pragma once

#include <cstdint>

#include "host_stub/words.hpp"

namespace gcmoe::cuda::ptx {

template <class T>
T host_load(const T* word) {
    return *static_cast<const volatile T*>(word);
}
template <class T>
T host_fetch_add(T* word, T value) {
    const T old = host_load(word);
    *word = old + value;
    return old;
}

#define GCMOE_HOST_SIGNALS(scope)                  \
    template <class T>                             \
    T load_relaxed_##scope(const T* word) {        \
        return host_load(word);                    \
    }                                              \
    template <class T>                             \
    T load_acquire_##scope(const T* word) {        \
        return host_load(word);                    \
    }                                              \
    template <class T>                             \
    void store_release_##scope(T* word, T value) { \
        *word = value;                             \
    }                                              \
    template <class T>                             \
    void add_release_##scope(T* word, T value) {   \
        host_fetch_add(word, value);               \
    }                                              \
    template <class T>                             \
    void xor_release_##scope(T* word, T bits) {    \
        *word ^= bits;                             \
    }                                              \
    template <class T>                             \
    T add_acq_rel_##scope(T* word, T value) {      \
        return host_fetch_add(word, value);        \
    }

GCMOE_HOST_SIGNALS(gpu)
GCMOE_HOST_SIGNALS(sys)

#undef GCMOE_HOST_SIGNALS

}  // namespace gcmoe::cuda::ptx
