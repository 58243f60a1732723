// What the protocol asks of a machine: the accesses to signal words, a pause, a clock.
//
// Two scopes: a policy M serves signals between units of one rank (GPU scope), M::Peer those
// between ranks (system scope). Signals are plain u32 and u64 words in memory; nothing else touches
// them while roles run.
#pragma once

#include <concepts>
#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::protocol {

// Accesses of one scope.
// Ordering: acquire loads and release stores / adds / xors as in C++; add_acq_rel returns the old
// value.
template <class M>
concept ScopedSignals = requires(std::uint32_t* w32, const std::uint32_t* c32, std::uint64_t* w64,
                                 const std::uint64_t* c64) {
    { M::load_relaxed(c32) } -> std::same_as<std::uint32_t>;
    { M::load_relaxed(c64) } -> std::same_as<std::uint64_t>;
    { M::load_acquire(c32) } -> std::same_as<std::uint32_t>;
    { M::load_acquire(c64) } -> std::same_as<std::uint64_t>;
    {M::store_release(w32, std::uint32_t{})};
    {M::store_release(w64, std::uint64_t{})};
    {M::add_release(w32, std::uint32_t{})};
    {M::add_release(w64, std::uint64_t{})};
    {M::xor_release(w64, std::uint64_t{})};
    { M::add_acq_rel(w32, std::uint32_t{}) } -> std::same_as<std::uint32_t>;
    { M::add_acq_rel(w64, std::uint64_t{}) } -> std::same_as<std::uint64_t>;
};

// The whole policy.
template <class M>
concept SignalMemory = ScopedSignals<M> && ScopedSignals<typename M::Peer> && requires {
    {M::pause(std::uint32_t{})};  // back off after so many polls
    { M::clock_ns() } -> std::same_as<std::uint64_t>;
    {
        M::kPollsPerCheck
        } -> std::convertible_to<std::uint32_t>;  // polls between looks at the deadline
};

}  // namespace gcmoe::protocol
