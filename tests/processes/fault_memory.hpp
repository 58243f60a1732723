// SignalMemory that sends its own process a signal at a chosen point of a launch: the product's
// thread policy otherwise.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "cpu/roles.hpp"
#include "cpu/thread_memory.hpp"

namespace gcmoe::test {

// Where in a launch a rank is struck, in the order in which a launch gets there.
enum class FaultPoint {
    kNone,
    kBeforeCounts,  // role 1, before its first count word
    kHalfCounts,    // role 1, some owners have its counts
    kFirstRows,     // role 1, before its first rows count as there
    kFirstGemm,     // role 2, before a first-GEMM task's mask bit
    kSecondGemm,    // role 2, after rows for a peer, before they are counted off
    kDone,          // role 2, before it tells a peer that it is done
    kCombine,       // role 3, before it sums
};

struct FaultMemory {
    using Peer = FaultMemory;
    static constexpr std::uint32_t kPollsPerCheck = cpu::ThreadMemory::kPollsPerCheck;

    // Strikes once, when armed.
    static void arm(FaultPoint point, int signal) {
        signal_number = signal;
        num_publishes = 0;
        counted_off = false;
        armed.store(point);
    }

    template <class T>
    static T load_relaxed(const T* word) {
        return cpu::ThreadMemory::load_relaxed(word);
    }
    template <class T>
    static T load_acquire(const T* word) {
        return cpu::ThreadMemory::load_acquire(word);
    }
    template <class T>
    static void store_release(T* word, T value) {
        if (counted_off) strike(FaultPoint::kDone);
        const int published = num_publishes++;
        if (published == 0) strike(FaultPoint::kBeforeCounts);
        if (published == kHalf) strike(FaultPoint::kHalfCounts);
        cpu::ThreadMemory::store_release(word, value);
    }
    template <class T>
    static void add_release(T* word, T value) {
        strike(FaultPoint::kFirstRows);
        cpu::ThreadMemory::add_release(word, value);
    }
    static void xor_release(std::uint64_t* word, std::uint64_t bits) {
        strike(FaultPoint::kFirstGemm);
        cpu::ThreadMemory::xor_release(word, bits);
    }
    template <class T>
    static T add_acq_rel(T* word, T value) {
        if constexpr (std::is_same_v<T, std::uint32_t>) {  // rows_left; other counters are u64
            strike(FaultPoint::kSecondGemm);
            counted_off = true;
        }
        return cpu::ThreadMemory::add_acq_rel(word, value);
    }
    static void pause(std::uint32_t polls) { cpu::ThreadMemory::pause(polls); }
    static std::uint64_t clock_ns() { return cpu::ThreadMemory::clock_ns(); }

    static bool combine(const cpu::CpuLaunch& launch, std::uint32_t unit) {
        strike(FaultPoint::kCombine);
        return cpu::role3_combine<FaultMemory>(launch, unit);
    }
    static cpu::Roles roles() {
        cpu::Roles roles = cpu::roles_with<FaultMemory>();
        roles.combine = &combine;
        return roles;
    }

  private:
    static constexpr int kHalf = 10;  // count words: past the first owner's
    static inline std::atomic<FaultPoint> armed{FaultPoint::kNone};
    static inline std::atomic<int> num_publishes{0};
    static inline std::atomic<bool> counted_off{false};
    static inline int signal_number = 0;

    static void strike(FaultPoint point) {
        FaultPoint wanted = point;
        if (armed.compare_exchange_strong(wanted, FaultPoint::kNone)) ::raise(signal_number);
    }
};

}  // namespace gcmoe::test
