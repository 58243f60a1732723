// The numbered rules of docs/protocol.md, as names that code can ask for.
//
// Product policies keep every rule, at no cost. A test policy has `static bool keeps(Rule)`: it
// removes one rule at run time, and a named test must then fail. That is how we know that each rule
// is needed.
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

namespace gcmoe::protocol {

enum class Rule : std::uint32_t {
    kPublishZeroCounts = 1,   // R1 a rank publishes a count word for every expert, also zero
    kSlotsBeforeCounts,       // R2 slot lists are written before their count words
    kCountHalves,             // R3 counts and lists of g and g + 1 stand in different halves
    kWaitEverySource,         // R4 role 1 waits for the words of every source
    kCountGeneration,         // R5 a count word of another generation is not a count of this one
    kCheckReceived,           // R6 received counts and list entries are checked before use
    kTargetsBeforeBlocks,     // R7 rows_left targets stand before num_blocks is published
    kBlockTag,                // R8 a block table entry of another generation is not read
    kWaitL1Empty,             // R9 x is refilled after all n1 tasks of the last lap
    kPadding,                 // R10 who fills the last row adds the padding rows
    kRowsBeforeFull,          // R11 rows are written before they are counted
    kWaitL1Full,              // R12 x is read after BM rows are counted
    kReadBeforeL1Release,     // R13 a task adds to l1_empty_count after its last read of x
    kOriginsBeforeL1Release,  // R14 task 0 reads origins before its add to l1_empty_count
    kWaitL2Empty,             // R15 activations are overwritten after all n2 tasks of the last lap
    kOriginsAfterL2Empty,     // R16 origins are written beside them only then, too
    kOriginsBeforeMask,       // R17 and before task 0's mask bit
    kMaskSense,             // R18 a mask bit means full when it differs from the lap parity before
    kWaitMask,              // R19 the second GEMM waits for each chunk's bit
    kReadBeforeL2Release,   // R20 a task adds to l2_empty_count after its last read
    kStoresBeforeRowsLeft,  // R21 combine rows are stored before they are counted off
    kDoneWithoutRows,       // R22 peers without rows get done as well
    kWaitEveryDone,         // R23 role 3 waits for done of every peer
    kDoneOrdered,           // R24 generations are compared in order modulo 2^32
    kAdvanceLast,           // R25 the last unit of role 3 advances the state
    kTaskOrder,             // R26 second GEMM of b before first GEMM of b + B
    kFaultToPeers,          // R27 who gives up tells every peer
    kSessionTag,            // R28 words of another session are ignored
    kBeyondIsCorrupt,       // R29 a ring counter beyond its target is reported, not waited for
    kWaitSharedReady,       // R30 the shared second GEMM waits for its row block
    kSharedTopUp,           // R31 idle row blocks gain n1_s as well
    kRankBarrier,           // R32 role 1's other units pull after the counts are in
    kWaitLastLap,           // R33 the second GEMM waits until its place's last lap has been read
    kAdvanceAfterRole2,     // R34 role 3 behind signals: state advances after role 2's units left
    kSharedRowsBeforeSum,   // R35 and it reads shared rows after that only
    kCount
};

// True if the policy keeps the rule.
template <class M>
GCMOE_HD constexpr bool keeps([[maybe_unused]] Rule rule) {
    if constexpr (requires { M::keeps(rule); }) {
        return M::keeps(rule);
    } else {
        return true;
    }
}

}  // namespace gcmoe::protocol
