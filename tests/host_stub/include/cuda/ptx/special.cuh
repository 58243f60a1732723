// Stand-in for src/cuda/ptx/special.cuh: who and when, on the host.
#pragma once

#include <chrono>
#include <cstdint>

#include "host_stub/host_cta.hpp"
#include "host_stub/words.hpp"

namespace gcmoe::cuda::ptx {

inline std::uint32_t thread_idx() { return host_stub::here().idx; }
inline std::uint32_t num_threads() { return host_stub::here().cta->num_threads; }
inline std::uint32_t cta_idx() { return host_stub::here().cta->idx; }
inline std::uint32_t num_ctas() { return host_stub::here().cta->num_ctas; }
inline std::uint32_t sm_id() { return cta_idx(); }

inline std::uint64_t global_timer_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline void launch_dependents() {}
inline void sleep_ns(std::uint32_t) { host_stub::yield(); }

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

}  // namespace gcmoe::cuda::ptx
