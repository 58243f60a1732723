// The one wait function. Every wait of every role is bounded, looks at the fault words while it
// polls, and on expiry leaves a stall report, tells all peers and returns false. Nobody traps; all
// units leave.
//
// Ordering: polls are relaxed (the first one may acquire); a true return has ended with an acquire
// load of the awaited word, so that everything its releaser wrote before is visible. No stand-alone
// fences (ThreadSanitizer cannot see them).
#pragma once

#include <cstdint>

#include "gcmoe/stall_report.hpp"
#include "layout/rank_memory.hpp"
#include "protocol/rules.hpp"
#include "protocol/signal_memory.hpp"
#include "protocol/words.hpp"
#include "trace/event.hpp"

namespace gcmoe::protocol {

// What a role's unit knows of its launch, read once at its start.
struct Launch {
    std::uint32_t generation = 0;
    std::uint32_t session = 0;
    std::uint32_t num_tokens = 0;
    std::uint32_t unit = 0;  // CTA or worker inside the role
    Role role = Role::kHost;
    std::uint64_t s0 = 0;           // sequence number of block 0
    std::uint64_t launches = 0;     // finished launches of this plan before this one
    std::uint64_t limit_ns = 0;     // 0 = wait for ever
    trace::UnitLog* log = nullptr;  // null = no trace
};

// What one look at a word says.
enum class Seen : std::uint8_t { kNotYet, kReady, kCorrupt };

// Where a wait stands, for the report.
struct WaitSite {
    Signal signal = Signal::kNone;
    std::uint64_t expected = 0;
    std::int32_t peer = -1;
    std::int32_t expert = -1;
    std::int32_t block = -1;
    bool behind_counts = false;  // waits for role 1, which may itself wait for a peer's counts
};

// Tells every rank, the own one too, that this rank has given up in this session.
template <SignalMemory M>
GCMOE_HD void publish_fault(const layout::RankMemory& memory, std::uint64_t word) {
    const std::uint32_t own = memory.rank();
    GCMOE_NOT_UNROLLED
    for (std::uint32_t i = 0; i < memory.peers.num_ranks; ++i) {
        if (i != own && !keeps<M>(Rule::kFaultToPeers)) continue;
        M::Peer::store_release(memory.heap.fault_word(memory.peers.heap(static_cast<int>(i)), own),
                               word);
    }
}

// Writes the stall report if this unit is the rank's first failing waiter, then tells all peers.
template <SignalMemory M>
GCMOE_COLD_HD void write_report(const layout::RankMemory& memory, const Launch& launch,
                                const WaitSite& site, StallCause cause, std::uint64_t seen,
                                std::uint64_t waited_ns) {
    if (M::add_acq_rel(&memory.state()->stall_claimed, 1U) != 0) return;
    StallReport report;
    report.cause = cause;
    report.role = launch.role;
    report.signal = site.signal;
    report.rank = static_cast<std::int32_t>(memory.rank());
    report.unit = static_cast<std::int32_t>(launch.unit);
    report.peer = site.peer;
    report.expert = site.expert;
    report.block = site.block;
    report.expected = site.expected;
    report.seen = seen;
    report.generation = launch.generation;
    report.session = launch.session;
    report.waited_us = waited_ns / 1000;
    *memory.at<StallReport>(memory.local.stall_report) = report;
    publish_fault<M>(memory, fault_word(launch.session, static_cast<std::uint32_t>(cause),
                                        static_cast<std::uint32_t>(site.signal), site.peer));
}

// The same, for callers that are not cold themselves: what they keep in registers must not have its
// address taken. (A GPU keeps `launch` in shared memory wherever it calls.)
template <SignalMemory M>
GCMOE_HD void report_stall(const layout::RankMemory& memory, const Launch& launch,
                           const WaitSite& site, StallCause cause, std::uint64_t seen,
                           std::uint64_t waited_ns) {
    const WaitSite site_copy = site;
    write_report<M>(memory, launch, site_copy, cause, seen, waited_ns);
}

// The first rank that has given up in this session, or -1. `word` gets its fault word.
template <SignalMemory M>
GCMOE_HD int find_fault(const layout::RankMemory& memory, std::uint32_t session,
                        std::uint64_t* word) {
    GCMOE_NOT_UNROLLED
    for (std::uint32_t i = 0; i < memory.peers.num_ranks; ++i) {
        *word = M::Peer::load_acquire(memory.heap.fault_word(memory.own_heap(), i));
        const bool same_session = generation_of(*word) == session || !keeps<M>(Rule::kSessionTag);
        if (*word != 0 && same_session) return static_cast<int>(i);
    }
    return -1;
}

// A peer gave up: leave a report (if this rank has none yet) and pass the fault on. `peer` may have
// passed it on itself: its word then tells who gave up first, and the report names that rank.
template <SignalMemory M>
GCMOE_COLD_HD void pass_fault_on(const layout::RankMemory& memory, const Launch& launch,
                                 const WaitSite& site, int peer, std::uint64_t word,
                                 std::uint64_t waited_ns) {
    if (peer == static_cast<int>(memory.rank())) return;  // reported by another unit of this rank
    WaitSite fault = site;
    fault.signal = Signal::kFault;
    const bool passed_on =
        fault_cause_of(word) == static_cast<std::uint32_t>(StallCause::kPeerFault);
    fault.peer = passed_on ? fault_culprit_of(word) : peer;
    fault.expected = 0;
    write_report<M>(memory, launch, fault, StallCause::kPeerFault, word, waited_ns);
}

template <SignalMemory M>
GCMOE_HD void report_peer_fault(const layout::RankMemory& memory, const Launch& launch,
                                const WaitSite& site, int peer, std::uint64_t word,
                                std::uint64_t waited_ns) {
    const WaitSite site_copy = site;
    pass_fault_on<M>(memory, launch, site_copy, peer, word, waited_ns);
}

// A wait that lasts looks for faults and at the clock. `start_ns`: 0, or what the last call
// returned. Returns when the first call was made, or kGaveUp after a report.
inline constexpr std::uint64_t kGaveUp = ~0ULL;
template <SignalMemory M>
GCMOE_COLD_HD std::uint64_t check_wait(const layout::RankMemory& memory, const Launch& launch,
                                       const WaitSite& site, std::uint64_t seen,
                                       std::uint64_t start_ns) {
    const std::uint64_t now_ns = M::clock_ns();
    if (start_ns == 0) start_ns = now_ns;
    std::uint64_t fault = 0;
    const int peer = find_fault<M>(memory, launch.session, &fault);
    if (peer >= 0) {
        pass_fault_on<M>(memory, launch, site, peer, fault, now_ns - start_ns);
        return kGaveUp;
    }
    // An eighth longer: the rank's one report should name the peer whose counts are missing.
    const std::uint64_t limit_ns = launch.limit_ns + (site.behind_counts ? launch.limit_ns / 8 : 0);
    if (launch.limit_ns == 0 || now_ns - start_ns <= limit_ns) return start_ns;
    write_report<M>(memory, launch, site, StallCause::kDeadline, seen, now_ns - start_ns);
    return kGaveUp;
}

// True where a policy wants the first look at a word to acquire: where most words are ready by then
// and a second round trip would be all that the wait costs.
template <class Scope>
GCMOE_HD constexpr bool first_look_acquires() {
    if constexpr (requires { Scope::kFirstLookAcquires; }) {
        return Scope::kFirstLookAcquires;
    } else {
        return false;
    }
}

// Notes how long a wait lasted that was not over at the first look, if the unit keeps a log and the
// policy has kRecordsWaits. Elsewhere it is nothing.
template <SignalMemory M>
class WaitRecord {
  public:
    GCMOE_HD WaitRecord(const Launch& /*launch*/, const WaitSite& /*site*/) {}
    GCMOE_HD void begin() {}
};

template <SignalMemory M>
requires(M::kRecordsWaits) class WaitRecord<M> {
  public:
    WaitRecord(const Launch& launch, const WaitSite& site) : launch_(launch), site_(site) {}
    WaitRecord(const WaitRecord&) = delete;
    WaitRecord& operator=(const WaitRecord&) = delete;
    void begin() {
        if (launch_.log != nullptr && begin_ns_ == 0) begin_ns_ = M::clock_ns();
    }
    ~WaitRecord() {
        if (begin_ns_ == 0) return;
        trace::Event event;
        event.begin_ns = begin_ns_;
        event.end_ns = M::clock_ns();
        event.generation = launch_.generation;
        if (site_.block >= 0) event.block = static_cast<std::uint32_t>(site_.block);
        if (site_.expert >= 0) event.expert = static_cast<std::uint16_t>(site_.expert);
        if (site_.peer >= 0) event.peer = static_cast<std::uint8_t>(site_.peer);
        event.role = static_cast<std::uint8_t>(launch_.role);
        event.signal = static_cast<std::uint8_t>(site_.signal);
        trace::record(launch_.log, event);
    }

  private:
    const Launch& launch_;
    const WaitSite& site_;
    std::uint64_t begin_ns_ = 0;
};

// Polls `word` with the accesses of `Scope` until `judge(value)` says kReady. `seen` gets that
// value. Returns false after the deadline, a peer's fault, or a value that judge calls corrupt.
template <SignalMemory M, ScopedSignals Scope, class Word, class Judge>
[[nodiscard]] GCMOE_HD bool wait_for(const layout::RankMemory& memory, const Launch& launch,
                                     const WaitSite& site, const Word* word, const Judge& judge,
                                     Word* seen = nullptr) {
    std::uint64_t start_ns = 0;
    WaitRecord<M> record(launch, site);
    GCMOE_NOT_UNROLLED
    for (std::uint32_t polls = 0;; ++polls) {
        const bool first = first_look_acquires<Scope>() && polls == 0;
        Word value = first ? Scope::load_acquire(word) : Scope::load_relaxed(word);
        Seen verdict = judge(value);
        if (verdict == Seen::kReady && !first) {
            value = Scope::load_acquire(word);
            verdict = judge(value);
        }
        if (verdict == Seen::kReady) {
            if (seen != nullptr) *seen = value;
            return true;
        }
        if (verdict == Seen::kCorrupt) [[unlikely]] {
            report_stall<M>(memory, launch, site, StallCause::kCorrupt, value, 0);
            return false;
        }
        record.begin();
        if (polls % M::kPollsPerCheck == M::kPollsPerCheck - 1) [[unlikely]] {
            const WaitSite site_copy = site;
            start_ns = check_wait<M>(memory, launch, site_copy, value, start_ns);
            if (start_ns == kGaveUp) return false;
        }
        M::pause(polls);
    }
}

// Ring counters: ready at equality. Beyond the target is corruption (rule R29): the waiter itself
// gates the next lap, so nobody may have counted further.
template <class M>
GCMOE_HD Seen judge_counter(std::uint32_t value, std::uint32_t target) {
    if (value == target) return Seen::kReady;
    const bool beyond = static_cast<std::int32_t>(value - target) > 0;
    return beyond && keeps<M>(Rule::kBeyondIsCorrupt) ? Seen::kCorrupt : Seen::kNotYet;
}

}  // namespace gcmoe::protocol
