// One event format for all backends: what a unit did, on what, from when to when. Units append to
// buffers of their own; nobody locks. A GPU's units, and each warp of its role 1, do the same in
// device memory, and the host copies the buffers out.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "gcmoe/stall_report.hpp"

namespace gcmoe::trace {

// Events of one unit never overlap: a task's event begins when its inputs are there, and ends where
// it waits for room for its outputs.
enum class Kind : std::uint8_t {
    kWait,          // for a signal that was not ready at the first look
    kBegin,         // a CTA's start, until it knows its launch
    kCount,         // role 1 counts its tokens' slots
    kRoute,         // role 1's accounts: task 0 ends with counts published, task 1 with blocks
    kReceive,       // everybody's counts, the wait for them included
    kFill,          // rows of one block into the ring; role 1's units share a block
    kFirstGemm,     // gate, up and SwiGLU of 128 columns
    kRequantise,    // the same columns, FP8, into the ring
    kSecondGemm,    // columns of results, to the tokens' owners
    kSharedFirst,   // the shared expert's first GEMM and requantisation; block = row block
    kSharedSecond,  // its second GEMM
    kCombine,       // sums of all tokens of the unit
};
inline constexpr int kNumKinds = 12;

inline constexpr std::uint32_t kNoBlock = 0xFFFFFFFFU;
inline constexpr std::uint16_t kNoIndex = 0xFFFFU;
inline constexpr std::uint8_t kNoPeer = 0xFFU;

struct Event {
    std::uint64_t begin_ns = 0;  // of the backend's clock; ranks of one process share it
    std::uint64_t end_ns = 0;
    std::uint32_t block = kNoBlock;  // of the launch, not the ring place
    std::uint32_t generation = 0;
    std::uint16_t expert = kNoIndex;  // local
    std::uint16_t task = kNoIndex;    // in the block
    Kind kind = Kind::kWait;
    std::uint8_t role = 0;        // a Role
    std::uint8_t signal = 0;      // a Signal, of a wait
    std::uint8_t peer = kNoPeer;  // whom a wait is for
};
static_assert(sizeof(Event) == 32);

// A unit's buffer. Full: later events are counted, not kept.
struct UnitLog {
    Event* events = nullptr;  // (capacity)
    std::uint32_t capacity = 0;
    std::uint32_t num_events = 0;
    std::uint64_t num_dropped = 0;
};

// Callers: the unit that owns the log.
GCMOE_HD inline void record(UnitLog* log, const Event& event) {
    if (log->num_events == log->capacity) {
        ++log->num_dropped;
        return;
    }
    log->events[log->num_events++] = event;
}

[[nodiscard]] const char* kind_name(Kind kind);

}  // namespace gcmoe::trace
