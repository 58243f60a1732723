// SignalMemory for soaks: the product's thread policy with a random delay before some accesses, so
// that every protocol point is sometimes reached late by some unit.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "cpu/thread_memory.hpp"
#include "numerics/hash.hpp"

namespace gcmoe::test {

struct DelayMemory {
    using Peer = DelayMemory;
    static constexpr std::uint32_t kPollsPerCheck = cpu::ThreadMemory::kPollsPerCheck;

    template <class T>
    static T load_relaxed(const T* word) {
        return cpu::ThreadMemory::load_relaxed(word);  // a poll: pause() is its delay
    }
    template <class T>
    static T load_acquire(const T* word) {
        delay();
        return cpu::ThreadMemory::load_acquire(word);
    }
    template <class T>
    static void store_release(T* word, T value) {
        delay();
        cpu::ThreadMemory::store_release(word, value);
    }
    template <class T>
    static void add_release(T* word, T value) {
        delay();
        cpu::ThreadMemory::add_release(word, value);
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) {
        delay();
        cpu::ThreadMemory::xor_release(word, bits);
    }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        delay();
        return cpu::ThreadMemory::add_acq_rel(word, value);
    }
    static void pause(std::uint32_t polls) { cpu::ThreadMemory::pause(polls); }
    static std::uint64_t clock_ns() { return cpu::ThreadMemory::clock_ns(); }

  private:
    // One access in 64 gives its core away, one in 1024 sleeps some microseconds.
    static void delay() {
        thread_local std::uint64_t state =
            std::hash<std::thread::id>{}(std::this_thread::get_id()) ^ clock_ns();
        state = numerics::splitmix64(state);
        if (state % 64 == 0) std::this_thread::yield();
        if (state % 1024 == 1) {
            std::this_thread::sleep_for(std::chrono::microseconds(1 + (state >> 32) % 50));
        }
    }
};

}  // namespace gcmoe::test
