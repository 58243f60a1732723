// Rank 0's side of a meeting: seats every rank, judges what they bring, hands everyone everyone's
// memory, and lets all go on or none, as far as its last word reaches them: who does not hear it in
// time gives up, and the others find that out by the next launch's deadline. Whatever goes wrong
// before, all who came hear the same sentence.
#pragma once

#include <string>
#include <vector>

#include "group/meeting_packets.hpp"

namespace gcmoe::group {

class MeetingChair {
  public:
    // members: incarnations, by rank, of those who have met before and now meet again; nobody else
    // is let in. Empty: whoever comes.
    MeetingChair(const Identity& self, int listener, std::vector<std::uint64_t> members);

    // Waits for all ranks. Errors: the first failure that a rank brings, which all hear as soon as
    // they have come, kStalled naming the ranks that have not come or have gone, kBadConfig naming
    // the first field in which ranks differ, kBadInput (a reset that would use memory again which a
    // lost rank may still write), kUnsupported (no descriptors left).
    Status gather(Hello own, SharedHandle own_handle, double wait_s);
    // Hands out all handles and what was agreed on. Callers: after gather.
    void hand_out(double wait_s, Agreed* out);
    [[nodiscard]] SharedHandle take_handle(int rank);
    // Waits until all are ready, then tells all to go on, or why not.
    Status start(const Status& own, double wait_s);
    // Ends the meeting before that: everybody who has come hears why. Returns `why`.
    Status call_off(const Status& why);

  private:
    struct Seat {
        UniqueFd socket;  // not of rank 0
        Hello hello;
        UniqueFd handle;
        bool is_taken = false;
        bool has_left = false;
        bool is_told = false;  // of failure_
        [[nodiscard]] bool is_empty() const { return !is_taken; }
    };

    [[nodiscard]] bool is_waiting() const;
    void note_failure(int rank, const Status& failure);
    void tell_failure();
    void wait_for_events(const Deadline& deadline) const;
    // Errors: those of accept_from, when no silent connection is left to hang up on.
    Status accept_all();
    void read_pending(const Deadline& deadline);
    void seat(UniqueFd socket, const Deadline& deadline);
    [[nodiscard]] bool admits(const PacketHeader& header, const Hello& hello) const;
    void note_outsider(UniqueFd socket, const std::string& difference);
    void find_left();
    [[nodiscard]] Status judge(double wait_s) const;
    [[nodiscard]] Status judge_presence(double wait_s) const;
    [[nodiscard]] Status judge_configurations() const;
    [[nodiscard]] Status judge_memory() const;
    [[nodiscard]] int find_newcomer() const;
    [[nodiscard]] bool is_restart() const;
    [[nodiscard]] std::vector<std::uint64_t> members() const;
    [[nodiscard]] Status ready_of(int rank, const Deadline& deadline);
    Status tell_all(const Status& status);

    Identity self_;
    int listener_;
    std::vector<std::uint64_t> admitted_;  // (num_ranks), or empty: anybody
    std::vector<Seat> seats_;              // (num_ranks)
    std::vector<UniqueFd> pending_;        // connected, but have not said who they are
    std::vector<UniqueFd> outsiders_;      // of another number of ranks or version
    std::string outsider_difference_;      // the first one's
    Status failure_;                       // the first one that a rank brings
};

}  // namespace gcmoe::group
