// Ranks as processes, for tests: a forked child runs a function and sends back what came of it.
// Fork before this process has threads.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gcmoe/stall_report.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::test {

// What a rank's process says at its end.
struct Outcome {
    bool ended = false;  // false: the process was killed, or did not end in time
    Code code = Code::kOk;
    std::string message;
    StallReport report;  // of the last stall
    double stall_s = 0;  // from the launch that stalled to the end of synchronize
    std::uint32_t session = 0;
    std::vector<std::uint16_t> y;  // of the last good launch
    std::string leaks;             // what the process still had after everything was destroyed

    void set(const Status& status) {
        code = status.code();
        message = status.message();
    }
};

// What a fault may cost the others: the limit and a second. ctest runs these tests alone
// (tests/processes/LABELS): on a busy machine ranks also wait for a core.
inline double most_seconds(double limit_s) { return limit_s + 1; }

// Who a stall report blames in the end.
int culprit_of(const StallReport& report);

// Words that the test and all its ranks see.
struct Board {
    std::atomic<int> arrived[8];  // ranks that have reached a point
    std::atomic<int> go[8];       // points that the test has opened
};

class SharedBoard {
  public:
    SharedBoard();
    SharedBoard(const SharedBoard&) = delete;
    SharedBoard& operator=(const SharedBoard&) = delete;
    ~SharedBoard();
    Board* operator->() const { return board_; }
    // Sleeps until `word` is at least `value`; false after ten seconds.
    static bool wait(const std::atomic<int>& word, int value);

  private:
    Board* board_;
};

class RankProcess {
  public:
    explicit RankProcess(const std::function<void(Outcome*)>& body);
    RankProcess(RankProcess&&) = default;
    // Kills a process that has not ended.
    ~RankProcess();
    [[nodiscard]] pid_t pid() const { return *pid_; }
    void signal(int number) const;
    // True once the process is stopped; false after ten seconds.
    [[nodiscard]] bool wait_stopped() const;
    Outcome wait(double seconds = 30);

  private:
    struct Reaper {
        void operator()(pid_t* pid) const;
    };
    std::unique_ptr<pid_t, Reaper> pid_;
    UniqueFd pipe_;
};

// What this process holds that a session could leave behind: open descriptors, mapped heaps.
struct Holdings {
    int descriptors = 0;
    int heaps = 0;
    static Holdings now();
    // Empty if nothing has been added since `before`.
    [[nodiscard]] std::string beyond(const Holdings& before) const;
};

// A path below the temporary folder that does not exist; gone at the end, with what is in it.
class ScratchPath {
  public:
    ScratchPath();
    ScratchPath(const ScratchPath&) = delete;
    ScratchPath& operator=(const ScratchPath&) = delete;
    ~ScratchPath();
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] bool exists() const;

  private:
    std::string path_;
};

}  // namespace gcmoe::test
