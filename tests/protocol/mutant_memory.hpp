// The stepper's signal memory with one rule of the protocol removed, and with units that linger.
//
// The stepper yields before every signal access; data accesses never yield. So this policy also
// lingers after writes and after the acquire that ends a wait: then a data access that stands on
// the wrong side of a signal access has others running in between.
#pragma once

#include <cstdint>
#include <functional>

#include "cpu/stepper_memory.hpp"
#include "numerics/hash.hpp"
#include "protocol/rules.hpp"

namespace gcmoe::test {

// One per process: one mutant runs at a time. Everything follows from the seed.
struct MutantControl {
    protocol::Rule removed = protocol::Rule::kCount;  // kCount: none
    std::uint64_t random = 0;
    std::uint32_t one_in = 0;      // one of so many signal accesses lingers; 0 = none
    std::uint32_t most_turns = 1;  // at most so many turns long
    const void* polled = nullptr;  // last word that was looked at by a wait
    // Called before and after every signal write, with the word: a test that plants values acts
    // here.
    std::function<void(const void* word)> before_write;
    std::function<void(const void* word)> after_write;

    // Lingering by seed: none, often and short, seldom and long, seldom and very long.
    void set(protocol::Rule rule, std::uint64_t seed) {
        constexpr std::uint32_t kOneIn[] = {0, 4, 8, 24};
        constexpr std::uint32_t kMostTurns[] = {1, 8, 64, 512};
        *this = MutantControl{};
        removed = rule;
        random = numerics::splitmix64(seed + 0x6D7574616E74);
        one_in = kOneIn[seed % 4];
        most_turns = kMostTurns[seed % 4];
    }
};

inline MutantControl& mutant_control() {
    static MutantControl control;
    return control;
}

struct MutantStepperMemory : cpu::StepperMemory {
    using Base = cpu::StepperMemory;
    using Peer = MutantStepperMemory;

    static bool keeps(protocol::Rule rule) { return rule != mutant_control().removed; }

    // A look of a wait. Never lingers: whoever waits in vain must be seen to wait in vain.
    template <class T>
    static T load_relaxed(const T* word) {
        const T value = Base::load_relaxed(word);
        mutant_control().polled = word;
        return value;
    }
    template <class T>
    static T load_acquire(const T* word) {
        const bool ends_a_wait = mutant_control().polled == word;
        const T value = Base::load_acquire(word);
        if (ends_a_wait) linger();
        return value;
    }
    template <class T>
    static void store_release(T* word, T value) {
        will_write(word);
        Base::store_release(word, value);
        wrote(word);
    }
    template <class T>
    static void add_release(T* word, T value) {
        will_write(word);
        Base::add_release(word, value);
        wrote(word);
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) {
        will_write(word);
        Base::xor_release(word, bits);
        wrote(word);
    }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        will_write(word);
        const T old = Base::add_acq_rel(word, value);
        wrote(word);
        return old;
    }

  private:
    static void will_write(const void* word) {
        if (mutant_control().before_write) mutant_control().before_write(word);
        linger();
    }
    static void wrote(const void* word) {
        if (mutant_control().after_write) mutant_control().after_write(word);
        linger();
    }
    // Gives turns away. Each counts as progress, or the stepper would take a unit that lingers for
    // one that is stuck.
    static void linger() {
        MutantControl& control = mutant_control();
        if (control.one_in == 0) return;
        control.random = numerics::splitmix64(control.random);
        if (control.random % control.one_in != 0) return;
        const std::uint64_t turns = 1 + (control.random >> 32) % control.most_turns;
        for (std::uint64_t i = 0; i < turns; ++i) {
            ++cpu::stepper_clock().writes;
            cpu::Fiber::suspend();
        }
    }
};

}  // namespace gcmoe::test
