// SignalMemory for the stepper: plain accesses on one thread; a step ends before each of them. Time
// is virtual: it stands still while anybody makes progress and jumps past every deadline when
// nobody can.
#pragma once

#include <cstdint>

#include "cpu/fiber.hpp"

namespace gcmoe::cpu {

// What the stepper knows of progress. One per process is enough: one stepper runs at a time on a
// thread.
struct StepperClock {
    std::uint64_t now_ns = 1;  // virtual
    std::uint64_t writes = 0;  // signal writes so far
    std::uint64_t steps = 0;   // signal accesses so far
};

inline StepperClock& stepper_clock() {
    thread_local StepperClock clock;
    return clock;
}

struct StepperMemory {
    using Peer = StepperMemory;
    static constexpr std::uint32_t kPollsPerCheck = 4;  // the fault words are looked at this often
    static constexpr bool kRecordsWaits = true;

    template <class T>
    static T load_relaxed(const T* word) {
        step();
        return *word;
    }
    template <class T>
    static T load_acquire(const T* word) {
        step();
        return *word;
    }
    template <class T>
    static void store_release(T* word, T value) {
        write_step();
        *word = value;
    }
    template <class T>
    static void add_release(T* word, T value) {
        write_step();
        *word += value;
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) {
        write_step();
        *word ^= bits;
    }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        write_step();
        const T old = *word;
        *word += value;
        return old;
    }
    static void pause(std::uint32_t) {}
    static std::uint64_t clock_ns() { return stepper_clock().now_ns; }

  private:
    static void step() {
        ++stepper_clock().steps;
        Fiber::suspend();
    }
    static void write_step() {
        step();
        ++stepper_clock().writes;
    }
};

}  // namespace gcmoe::cpu
