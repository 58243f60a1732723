#include "gcmoe/status.hpp"

#include <fmt/format.h>

#include "gcmoe/stall_report.hpp"
#include "protocol/words.hpp"

namespace gcmoe {

const char* code_name(Code code) {
    switch (code) {
        case Code::kOk:
            return "ok";
        case Code::kBadConfig:
            return "bad_config";
        case Code::kBadIndex:
            return "bad_index";
        case Code::kBadInput:
            return "bad_input";
        case Code::kBadCheckpoint:
            return "bad_checkpoint";
        case Code::kInexact:
            return "inexact";
        case Code::kUnsupported:
            return "unsupported";
        case Code::kStalled:
            return "stalled";
        case Code::kBusy:
            return "busy";
        case Code::kInternal:
            return "internal";
    }
    return "unknown";
}

const char* role_name(Role role) {
    switch (role) {
        case Role::kHost:
            return "host";
        case Role::kDispatch:
            return "role 1 (dispatch)";
        case Role::kCompute:
            return "role 2 (compute)";
        case Role::kCombine:
            return "role 3 (combine)";
        case Role::kShared:
            return "role 4 (shared)";
    }
    return "unknown role";
}

const char* signal_name(Signal signal) {
    switch (signal) {
        case Signal::kNone:
            return "none";
        case Signal::kRecvCount:
            return "recv_count";
        case Signal::kNumBlocks:
            return "num_blocks";
        case Signal::kBlockTable:
            return "block_table";
        case Signal::kL1Full:
            return "l1_full_count";
        case Signal::kL1Empty:
            return "l1_empty_count";
        case Signal::kL2Full:
            return "l2_full_mask";
        case Signal::kL2Empty:
            return "l2_empty_count";
        case Signal::kSharedReady:
            return "shared_ready";
        case Signal::kDone:
            return "done";
        case Signal::kRoleBarrier:
            return "role1_arrived";
        case Signal::kFault:
            return "fault";
        case Signal::kRecvSlot:
            return "recv_slot";
        case Signal::kOverlapOff:
            return "role1_left";
        case Signal::kRole2Left:
            return "role2_left";
    }
    return "unknown signal";
}

namespace {

std::string place_of(const StallReport& report) {
    std::string text;
    if (report.peer >= 0) text += fmt::format(", peer rank {}", report.peer);
    if (report.expert >= 0) text += fmt::format(", local expert {}", report.expert);
    if (report.block >= 0) text += fmt::format(", block {}", report.block);
    return text;
}

const char* cause_name(StallCause cause) {
    switch (cause) {
        case StallCause::kNone:
            return "no cause";
        case StallCause::kDeadline:
            return "a wait ran out";
        case StallCause::kPeerFault:
            return "a peer gave up";
        case StallCause::kCorrupt:
            return "a corrupt value";
        case StallCause::kMissingExpert:
            return "an expert without weights";
        case StallCause::kNoMemory:
            return "a unit ran out of memory or threw";
    }
    return "an unknown cause";
}

// What the fault word of who gave up first says: why, at which signal, because of whom.
std::string describe_fault(std::uint64_t word) {
    const auto cause = static_cast<StallCause>(protocol::fault_cause_of(word));
    const auto signal = static_cast<Signal>(static_cast<std::uint32_t>(word >> 24) & 0xFF);
    const int culprit = protocol::fault_culprit_of(word);
    if (cause == StallCause::kNoMemory) return cause_name(cause);  // waited for nobody
    std::string text = fmt::format("{} in {}", cause_name(cause), signal_name(signal));
    if (culprit >= 0) text += fmt::format(" of rank {}", culprit);
    return text;
}

}  // namespace

std::string describe(const StallReport& report) {
    const std::string who =
        fmt::format("rank {}, {}, unit {}", report.rank, role_name(report.role), report.unit);
    const std::string when =
        fmt::format("generation {}, session {}", report.generation, report.session);
    const std::string where = signal_name(report.signal) + place_of(report);
    switch (report.cause) {
        case StallCause::kNone:
            return "no stall";
        case StallCause::kPeerFault:
            return fmt::format("{}: rank {} gave up first ({}); {}", who, report.peer,
                               describe_fault(report.seen), when);
        case StallCause::kDeadline:
            return fmt::format("{}: waited {:.3f} s for {}: expected {:#x}, seen {:#x}; {}", who,
                               static_cast<double>(report.waited_us) / 1e6, where, report.expected,
                               report.seen, when);
        case StallCause::kCorrupt:
            return fmt::format("{}: corrupt value in {}: expected {:#x}, seen {:#x}; {}", who,
                               where, report.expected, report.seen, when);
        case StallCause::kMissingExpert:
            return fmt::format(
                "{}: {} rows arrived for local expert {}, whose weights were not packed; {}", who,
                report.seen, report.expert, when);
        case StallCause::kNoMemory:
            return fmt::format("{}: the unit ran out of memory or threw; {}", who, when);
    }
    return "unknown cause";
}

}  // namespace gcmoe
