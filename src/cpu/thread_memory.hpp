// SignalMemory for threads, of one process or of several that map the same memory: std::atomic_ref
// on plain words. Both scopes are the same here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace gcmoe::cpu {

// Without a lock anywhere, which another process would not see: the words alone carry the protocol.
static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);

struct ThreadMemory {
    using Peer = ThreadMemory;
    // A sleeping poll takes 0.1 ms, and on a machine with ten waiting threads a core 40 ms: looks
    // at the clock must not be many polls apart, or limits run out seconds late.
    static constexpr std::uint32_t kPollsPerCheck = 4;
    static constexpr bool kRecordsWaits = true;

    template <class T>
    static T load_relaxed(const T* word) {
        return std::atomic_ref<T>(*const_cast<T*>(word)).load(std::memory_order_relaxed);
    }
    template <class T>
    static T load_acquire(const T* word) {
        return std::atomic_ref<T>(*const_cast<T*>(word)).load(std::memory_order_acquire);
    }
    template <class T>
    static void store_release(T* word, T value) {
        std::atomic_ref<T>(*word).store(value, std::memory_order_release);
    }
    template <class T>
    static void add_release(T* word, T value) {
        std::atomic_ref<T>(*word).fetch_add(value, std::memory_order_release);
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) {
        std::atomic_ref<std::uint64_t>(*word).fetch_xor(bits, std::memory_order_release);
    }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        return std::atomic_ref<T>(*word).fetch_add(value, std::memory_order_acq_rel);
    }
    // More units than cores is the usual case on a CPU: give the core away at once, and after a
    // while sleep, so that hundreds of waiting units leave room for the one that works.
    static void pause(std::uint32_t polls) {
        if (polls < kPollsBeforeSleep) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
    static std::uint64_t clock_ns() {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }

  private:
    static constexpr std::uint32_t kPollsBeforeSleep = 256;
};

}  // namespace gcmoe::cpu
