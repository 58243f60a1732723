// CTAs on the host: every CUDA thread is a fiber of one host thread, so that the roles' own sources
// run without a GPU. Deterministic: fibers take turns in order, and a barrier wakes its members in
// order.
//
// The stand-ins for src/cuda/ptx (tests/host_stub/include) are written on top of this. Outside a
// Machine a caller is thread 0 of a CTA of one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/fiber.hpp"

namespace gcmoe::host_stub {

// Threads that wait for each other: a lap ends when all members have arrived.
struct Meeting {
    std::uint32_t arrived = 0;
    std::uint32_t lap = 0;
};

// What a lane shows to the other lanes of its warp.
using Offer = std::array<std::uint32_t, 4>;

struct Warp {
    Meeting meeting;
    std::array<Offer, 32> offers[2];  // by parity of the lap: a slow reader's stay a lap longer
};

struct Cta {
    std::uint32_t idx = 0;
    std::uint32_t num_ctas = 1;
    std::uint32_t num_threads = 1;
    std::uint8_t* shared = nullptr;  // 1024-byte aligned
    std::vector<std::uint8_t> shared_storage;
    std::array<Meeting, 16> barriers;  // 0: all threads
    std::vector<Warp> warps;
};

struct Thread {
    Cta* cta = nullptr;
    std::uint32_t idx = 0;
    const Meeting* waits_for = nullptr;  // not to be resumed while its lap is `lap`
    std::uint32_t lap = 0;
};

// The thread that runs now.
[[nodiscard]] Thread& here();
// Lets the others run.
void yield();
// Until `members` threads have arrived.
void meet(Meeting* meeting, std::uint32_t members);
// Shows `offer` to the warp and returns what all lanes show; valid until the warp's next but one
// exchange.
const std::array<Offer, 32>& exchange(const Offer& offer);

class Machine {
  public:
    // A CTA whose threads all run `body(shared memory)`.
    void add_cta(std::uint32_t idx, std::uint32_t num_ctas, std::uint32_t num_threads,
                 std::size_t shared_bytes, std::function<void(std::uint8_t*)> body);
    // Until every thread of every CTA has ended.
    void run();

  private:
    struct Unit {
        Thread thread;
        std::unique_ptr<cpu::Fiber> fiber;
    };
    std::vector<std::unique_ptr<Cta>> ctas_;
    std::vector<std::unique_ptr<Unit>> units_;
};

}  // namespace gcmoe::host_stub
