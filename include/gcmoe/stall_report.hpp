// What the first waiter of a rank saw when a bounded wait ran out.
#pragma once

#include <cstdint>
#include <string>

namespace gcmoe {

enum class Role : std::uint32_t {
    kHost = 0,
    kDispatch = 1,
    kCompute = 2,
    kCombine = 3,
    kShared = 4
};

// The signal that was waited for. Names are those of docs/protocol.md.
enum class Signal : std::uint32_t {
    kNone = 0,
    kRecvCount,
    kNumBlocks,
    kBlockTable,
    kL1Full,
    kL1Empty,
    kL2Full,
    kL2Empty,
    kSharedReady,
    kDone,
    kRoleBarrier,
    kFault,       // a peer gave up first; `peer` names it
    kRecvSlot,    // not a wait: a received list entry is out of range
    kOverlapOff,  // role 1's end, waited for by role 2 when the plan's overlap is off, and by a
                  // role 3 that follows role 2
    kRole2Left,   // role 2's end, waited for by role 3 when it runs on role 1's units
};

enum class StallCause : std::uint32_t {
    kNone = 0,
    kDeadline,       // the wait's limit ran out
    kPeerFault,      // a peer gave up first
    kCorrupt,        // a signal or a received value that no working rank can write
    kMissingExpert,  // rows arrived for an expert whose weights were not packed
    kNoMemory,       // a unit threw, for want of memory as a rule
};

// Plain words, so that a kernel can write it to host-visible memory. -1 = does not apply.
struct StallReport {
    StallCause cause = StallCause::kNone;
    Role role = Role::kHost;
    Signal signal = Signal::kNone;
    std::int32_t rank = -1;
    std::int32_t unit = -1;    // CTA or worker inside the role
    std::int32_t peer = -1;    // whose signal is missing, or who gave up
    std::int32_t expert = -1;  // local expert index of `peer`'s count word, or of the block
    std::int32_t block = -1;   // block of this launch
    std::uint64_t expected = 0;
    std::uint64_t seen = 0;
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
    std::uint64_t waited_us = 0;
};
static_assert(sizeof(StallReport) == 64);

[[nodiscard]] const char* role_name(Role role);
[[nodiscard]] const char* signal_name(Signal signal);
// One sentence for people: who waited where for whom, expected and seen values.
[[nodiscard]] std::string describe(const StallReport& report);

}  // namespace gcmoe
