// SignalMemory on a GPU: GPU scope for the units of one rank, system scope for peers.
#pragma once

#include <cstdint>

#include "cuda/ptx/signal.cuh"
#include "cuda/ptx/special.cuh"
#include "protocol/signal_memory.hpp"

namespace gcmoe::cuda::device {

// Signals between ranks: other GPUs over NVLink, or virtual ranks of the same one.
struct SystemMemory {
    template <class T>
    static __device__ T load_relaxed(const T* word) {
        return ptx::load_relaxed_sys(word);
    }
    template <class T>
    static __device__ T load_acquire(const T* word) {
        return ptx::load_acquire_sys(word);
    }
    template <class T>
    static __device__ void store_release(T* word, T value) {
        ptx::store_release_sys(word, value);
    }
    template <class T>
    static __device__ void add_release(T* word, T value) {
        ptx::add_release_sys(word, value);
    }
    static __device__ void xor_release(std::uint64_t* word, std::uint64_t bits) {
        ptx::xor_release_sys(word, bits);
    }
    template <class T>
    static __device__ T add_acq_rel(T* word, T value) {
        return ptx::add_acq_rel_sys(word, value);
    }
};

// Signals between the SMs of one rank.
struct GpuMemory {
    using Peer = SystemMemory;
    // 1024 polls of an L2 word are some 700 us at most with the longest pause below: the deadline
    // and the fault words are looked at often enough for a report within a second.
    static constexpr std::uint32_t kPollsPerCheck = 1024;
    static constexpr bool kFirstLookAcquires = true;  // a round trip to the L2 takes 0.7 to 1.5 us

    template <class T>
    static __device__ T load_relaxed(const T* word) {
        return ptx::load_relaxed_gpu(word);
    }
    template <class T>
    static __device__ T load_acquire(const T* word) {
        return ptx::load_acquire_gpu(word);
    }
    template <class T>
    static __device__ void store_release(T* word, T value) {
        ptx::store_release_gpu(word, value);
    }
    template <class T>
    static __device__ void add_release(T* word, T value) {
        ptx::add_release_gpu(word, value);
    }
    static __device__ void xor_release(std::uint64_t* word, std::uint64_t bits) {
        ptx::xor_release_gpu(word, bits);
    }
    template <class T>
    static __device__ T add_acq_rel(T* word, T value) {
        return ptx::add_acq_rel_gpu(word, value);
    }
    // The first polls go on at once (a hand-over inside the GPU takes about 1 us), later ones spare
    // the L2 for those who work.
    static __device__ void pause(std::uint32_t polls) {
        if (polls >= kPollsBeforeSleep) ptx::sleep_ns(kSleepNs);
    }
    static __device__ std::uint64_t clock_ns() { return ptx::global_timer_ns(); }

  private:
    static constexpr std::uint32_t kPollsBeforeSleep = 64;
    static constexpr std::uint32_t kSleepNs = 100;
};

}  // namespace gcmoe::cuda::device
