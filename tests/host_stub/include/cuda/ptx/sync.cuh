// Stand-in for src/cuda/ptx/sync.cuh: barriers, shuffles and mbarriers on the host.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.hpp"
#include "host_stub/host_cta.hpp"
#include "host_stub/words.hpp"

namespace gcmoe::cuda::ptx {

// Offset in the CTA's shared memory.
inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(pointer) -
                                      host_stub::here().cta->shared);
}

inline void named_barrier(std::uint32_t id, std::uint32_t threads) {
    host_stub::meet(&host_stub::here().cta->barriers[id], threads);
}
inline void cta_barrier() { named_barrier(0, host_stub::here().cta->num_threads); }
inline void warp_barrier() { host_stub::exchange({}); }

// The last lane, not the first: nobody may count on which one it is.
inline bool elect_one() {
    warp_barrier();
    const std::uint32_t threads = host_stub::here().cta->num_threads;
    return host_stub::here().idx % 32 == (threads < 32 ? threads : 32) - 1;
}

template <class T>
T shuffle(T value, int lane) {
    static_assert(sizeof(T) == 4);
    const auto& offers = host_stub::exchange({std::bit_cast<std::uint32_t>(value), 0, 0, 0});
    return std::bit_cast<T>(offers[static_cast<std::size_t>(lane) % 32][0]);
}
template <class T>
T shuffle_xor(T value, int mask) {
    return shuffle(value, static_cast<int>(host_stub::here().idx % 32) ^ mask);
}

template <class T>
T shuffle_up(T value, std::uint32_t lanes) {
    const std::uint32_t lane = host_stub::here().idx % 32;
    return shuffle(value, static_cast<int>(lane < lanes ? lane : lane - lanes));
}

// One bit per lane of the warp for which `holds(what the lane shows)`.
template <class Holds>
std::uint32_t lanes_where(std::uint32_t value, const Holds& holds) {
    const auto& offers = host_stub::exchange({value, 0, 0, 0});
    const std::uint32_t threads = host_stub::here().cta->num_threads;
    std::uint32_t bits = 0;
    for (std::uint32_t lane = 0; lane < 32 && lane < threads; ++lane) {
        if (holds(offers[lane][0])) bits |= 1U << lane;
    }
    return bits;
}

inline std::uint32_t warp_sum(std::uint32_t value) {
    std::uint32_t sum = 0;
    lanes_where(value, [&sum](std::uint32_t seen) {
        sum += seen;
        return true;
    });
    return sum;
}
inline std::uint32_t warp_max(std::uint32_t value) {
    std::uint32_t largest = value;
    lanes_where(value, [&largest](std::uint32_t seen) {
        if (seen > largest) largest = seen;
        return true;
    });
    return largest;
}
inline void shared_max(std::uint32_t* word, std::uint32_t value) {
    if (value > *word) *word = value;
}

inline std::uint32_t ballot(bool condition) {
    return lanes_where(condition ? 1U : 0U, [](std::uint32_t seen) { return seen != 0; });
}
inline std::uint32_t match_any(std::uint32_t value) {
    return lanes_where(value, [value](std::uint32_t seen) { return seen == value; });
}

inline void fence_async_proxy_shared() {}
inline void fence_async_proxy() {}

// ---- mbarriers: the phase ends when all arrivals and all announced bytes are in.
struct HostMbarrier {
    std::uint16_t pending;
    std::uint16_t expected : 15;
    std::uint16_t phase : 1;
    std::int32_t bytes;

    void settle() {
        if (pending != 0 || bytes != 0) return;
        phase = phase ^ 1U;
        pending = expected;
    }
};
static_assert(sizeof(HostMbarrier) == sizeof(std::uint64_t));

inline HostMbarrier& host_mbarrier(std::uint64_t* barrier) {
    return *reinterpret_cast<HostMbarrier*>(barrier);
}
inline void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
    const auto count = static_cast<std::uint16_t>(arrivals);
    host_mbarrier(barrier) = {count, static_cast<std::uint16_t>(count & 0x7FFFU), 0, 0};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
    HostMbarrier& host = host_mbarrier(barrier);
    --host.pending;
    host.bytes += static_cast<std::int32_t>(bytes);
    host.settle();
}
inline void mbarrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
    HostMbarrier& host = host_mbarrier(barrier);
    GCMOE_CHECK(host.pending != 0, bytes);
    host.bytes += static_cast<std::int32_t>(bytes);
}
inline void mbarrier_arrive(std::uint64_t* barrier) { mbarrier_arrive_expect(barrier, 0); }
inline std::uint64_t* mbarrier_at(std::uint32_t address) {
    return reinterpret_cast<std::uint64_t*>(host_stub::here().cta->shared + address);
}
inline void mbarrier_arrive(std::uint32_t address) { mbarrier_arrive(mbarrier_at(address)); }
inline void mbarrier_complete(std::uint64_t* barrier, std::uint32_t bytes) {
    HostMbarrier& host = host_mbarrier(barrier);
    host.bytes -= static_cast<std::int32_t>(bytes);
    host.settle();
}
inline bool mbarrier_try_wait(std::uint64_t* barrier, std::uint32_t parity) {
    if (host_mbarrier(barrier).phase != parity) return true;
    host_stub::yield();
    return host_mbarrier(barrier).phase != parity;
}
inline bool mbarrier_try_wait(std::uint32_t address, std::uint32_t parity) {
    return mbarrier_try_wait(mbarrier_at(address), parity);
}

}  // namespace gcmoe::cuda::ptx
