#include "spawn_ranks.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "child_process.hpp"
#include "console.hpp"

namespace gcmoe::cli {
namespace {

using Clock = std::chrono::steady_clock;

// After a rank has failed and the others have stopped working, they have the longest wait of a rank
// and this long for their reports.
constexpr double kGraceSeconds = 2;
constexpr double kLongestWait = 1.125;  // in deadlines: waits behind the counts
// Ranks that use less of a processor than this per look at them are not working.
constexpr double kWorkSeconds = 0.001;
constexpr std::chrono::milliseconds kLook{250};
// What one rank has found makes the run impossible: the others may say so, too, if they do at once.
constexpr double kToldSeconds = 0.5;
// Between asking a rank to end and making it.
constexpr double kTermSeconds = 1;
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// A folder of mode 0700 that goes with its owner.
class PrivateFolder {
  public:
    PrivateFolder() = default;
    PrivateFolder(const PrivateFolder&) = delete;
    PrivateFolder& operator=(const PrivateFolder&) = delete;
    ~PrivateFolder() {
        std::error_code error;
        if (!path_.empty()) std::filesystem::remove_all(path_, error);
    }
    Status make() {
        std::error_code error;
        std::string name = (std::filesystem::temp_directory_path(error) / "gcmoe-XXXXXX").string();
        if (!error && ::mkdtemp(name.data()) == nullptr) {
            error.assign(errno, std::generic_category());
        }
        if (error) {
            const char* folder = std::getenv("TMPDIR");
            return {Code::kUnsupported,
                    fmt::format("--spawn: no folder for the ranks to meet in TMPDIR = '{}': {}",
                                folder == nullptr ? "" : folder, error.message())};
        }
        path_ = name;
        return {};
    }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// This process's words, for one rank.
std::vector<std::string> rank_arguments(const SpawnRequest& request, int rank,
                                        const std::string& session) {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> words;
    for (std::string word; std::getline(file, word, '\0');) {
        if (word != "--spawn") words.push_back(word);
    }
    const std::string last[] = {"--ranks",   std::to_string(request.num_ranks),
                                "--rank",    std::to_string(rank),
                                "--session", session};
    words.insert(words.end(), std::begin(last), std::end(last));
    return words;
}

// Signals that would end this process come as bytes instead, until the ranks have ended. What it
// was started to ignore (nohup) it goes on ignoring; but it hears of its children's ends.
class SignalStream {
  public:
    SignalStream() {
        ::sigemptyset(&caught_);
        for (const int number : kPassedOn) {
            struct sigaction now {};
            const bool is_ignored =
                ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
            if (!is_ignored) ::sigaddset(&caught_, number);
        }
        ::sigprocmask(SIG_BLOCK, &caught_, &before_);
        struct sigaction plain {};
        plain.sa_handler = SIG_DFL;
        ::sigaction(SIGCHLD, &plain, &child_before_);
    }
    SignalStream(const SignalStream&) = delete;
    SignalStream& operator=(const SignalStream&) = delete;
    ~SignalStream() {
        ::sigaction(SIGCHLD, &child_before_, nullptr);
        ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    }
    Status open() {
        stream_ = UniqueFd(::signalfd(-1, &caught_, SFD_CLOEXEC | SFD_NONBLOCK));
        if (stream_.is_open()) return {};
        return {Code::kUnsupported,
                "--spawn: no stream of signals: " + std::generic_category().message(errno)};
    }
    [[nodiscard]] int descriptor() const { return stream_.get(); }
    // The next signal, or 0.
    [[nodiscard]] int take() const {
        signalfd_siginfo info{};
        const ssize_t got = ::read(stream_.get(), &info, sizeof(info));
        return got == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
    }

  private:
    sigset_t caught_{};
    sigset_t before_{};
    struct sigaction child_before_ {};
    UniqueFd stream_;
};

// Ended by itself, with an error that is no stall: the others cannot come to their end without it.
bool gave_up(const ChildProcess& child) {
    if (child.was_ended || child.exit_code <= kExitDone || child.exit_code == kExitStalled) {
        return false;
    }
    // A rank that came to its end and found a difference has reported; that is no error.
    return child.exit_code != kExitFailed || child.has_error();
}

class Ranks {
  public:
    explicit Ranks(const SpawnRequest& request) : request_(request) {}

    Status start(const std::string& session) {
        children_.resize(static_cast<std::size_t>(request_.num_ranks));
        for (int rank = 0; rank < request_.num_ranks; ++rank) {
            ChildProcess& child = children_[static_cast<std::size_t>(rank)];
            Status status = start_child(rank_arguments(request_, rank, session), &child);
            if (status.ok()) continue;
            children_.resize(static_cast<std::size_t>(rank));
            send(SIGKILL);
            while (!all_ended()) step(-1);
            return status;
        }
        return {};
    }
    // Until all have ended. Returns the signal that was passed on, or 0.
    int wait_for_all(const SignalStream& signals) {
        int passed_on = 0;
        while (!all_ended()) {
            step(signals.descriptor());
            if (const int number = signals.take(); number != 0) {
                send(number);
                passed_on = number;
                may_go_on_ = false;
                end_by(kGraceSeconds);
            }
            if (may_go_on_ && std::any_of(children_.begin(), children_.end(), gave_up)) {
                may_go_on_ = false;
                has_end_ = false;
                end_by(kToldSeconds);
            }
            const auto failed = [](const ChildProcess& child) {
                return child.has_ended && child.exit_code != kExitDone;
            };
            if (std::any_of(children_.begin(), children_.end(), failed)) {
                end_by(kLongestWait * request_.deadline_s + kGraceSeconds);
                if (may_go_on_) extend_while_working();
            }
            force_end();
        }
        return passed_on;
    }
    [[nodiscard]] const std::vector<ChildProcess>& children() const { return children_; }

  private:
    [[nodiscard]] bool all_ended() const {
        return std::all_of(children_.begin(), children_.end(), [](const ChildProcess& child) {
            return child.has_ended && !child.out.is_open() && !child.err.is_open();
        });
    }
    void send(int number) {
        for (const ChildProcess& child : children_) {
            if (!child.has_ended) ::kill(child.pid, number);
        }
    }
    // Waits for something to happen, and takes it in.
    void step(int signals) {
        std::vector<pollfd> events{{signals, POLLIN, 0}};
        for (const ChildProcess& child : children_) {
            for (const int stream : {child.out.get(), child.err.get()}) {
                events.push_back({stream, POLLIN, 0});  // negative ones are passed over
            }
        }
        constexpr int kLookAroundMs = 50;
        ::poll(events.data(), events.size(), kLookAroundMs);
        for (ChildProcess& child : children_) {
            drain(&child.out, &child.out_text);
            drain(&child.err, &child.err_text);
        }
        reap(&children_);
    }
    void end_by(double seconds) {
        if (has_end_) return;
        has_end_ = true;
        end_ = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }
    // A rank notices that another one is lost when it next waits for it: the work before that may
    // last longer than any wait. Without a deadline it never notices.
    void extend_while_working() {
        const Clock::time_point now = Clock::now();
        if (request_.deadline_s <= 0 || now < next_look_) return;
        next_look_ = now + kLook;
        double used = 0;
        for (const ChildProcess& child : children_) used += processor_seconds(child);
        if (used - used_ >= kWorkSeconds) {
            has_end_ = false;
            end_by(kLongestWait * request_.deadline_s + kGraceSeconds);
        }
        used_ = used;
    }
    void force_end() {
        if (!has_end_ || Clock::now() < end_) return;
        may_go_on_ = false;
        for (ChildProcess& child : children_) child.was_ended |= !child.has_ended;
        send(was_asked_ ? SIGKILL : SIGTERM);
        was_asked_ = true;
        has_end_ = false;
        end_by(kTermSeconds);
    }

    SpawnRequest request_;
    std::vector<ChildProcess> children_;
    bool has_end_ = false;
    bool was_asked_ = false;
    bool may_go_on_ = true;
    Clock::time_point end_;
    Clock::time_point next_look_;
    double used_ = 0;  // of processors, by the ranks that run, at the last look
};

// How near an end is to the reason for all others': the smaller, the nearer.
int distance_of(const ChildProcess& child) {
    if (child.exit_code == kExitDone) return 5;
    if (child.was_ended) return 4;
    if (gave_up(child)) return 0;
    if (child.exit_code != kExitStalled) return 3;
    const bool was_told = child.last_word().find("gave up first") != std::string::npos;
    return was_told ? 2 : 1;
}

const ChildProcess& first_failed(const std::vector<ChildProcess>& children) {
    const auto is_nearer = [](const ChildProcess& one, const ChildProcess& other) {
        return std::pair(distance_of(one), one.end_order) <
               std::pair(distance_of(other), other.end_order);
    };
    return *std::min_element(children.begin(), children.end(), is_nearer);
}

// What a rank's end means for all.
int summary_code(const std::vector<ChildProcess>& children) {
    const int code = first_failed(children).exit_code;
    const bool has_meaning = code == kExitDone || code == kExitBadInput || code == kExitStalled;
    return has_meaning ? code : kExitFailed;
}

const char* error_name(int code) {
    if (code == kExitStalled) return code_name(Code::kStalled);
    return code == kExitBadInput ? code_name(Code::kBadInput) : "rank_lost";
}

// One sentence for all: what that rank said, or how it ended.
std::string reason_of(const std::vector<ChildProcess>& children) {
    const ChildProcess& first = first_failed(children);
    const std::string word = first.last_word();
    if (first.exit_code > kExitDone && !word.empty()) return word;
    return fmt::format("rank {} ended with {}", &first - children.data(), first.end_text());
}

bool all_say_the_same(const std::vector<ChildProcess>& children) {
    return std::all_of(children.begin(), children.end(), [&](const ChildProcess& child) {
        return child.exit_code >= 0 && child.last_word() == children.front().last_word();
    });
}

void print_failure(const SpawnRequest& request, const std::vector<ChildProcess>& children,
                   int code) {
    print_error(request.subcommand, reason_of(children));
    if (!all_say_the_same(children)) {
        Table table({"rank", "process", "end", "last word"});
        for (std::size_t rank = 0; rank < children.size(); ++rank) {
            const ChildProcess& child = children[rank];
            table.add({std::to_string(rank), std::to_string(child.pid), child.end_text(),
                       child.last_word()});
        }
        print_aside(table.text(4));
    }
    if (!request.json) return;
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (const ChildProcess& child : children) {
        nlohmann::ordered_json one{{"process", child.pid}};
        one["exit_code"] = child.exit_code >= 0 ? nlohmann::ordered_json(child.exit_code) : nullptr;
        one["signal"] = child.signal != 0 ? nlohmann::ordered_json(child.signal) : nullptr;
        one["last_word"] = child.last_word();
        ranks.push_back(std::move(one));
    }
    print_json({{"error", error_name(code)},
                {"verified", false},
                {"reason", reason_of(children)},
                {"ranks", std::move(ranks)}});
}

// Rank 0 has judged what all ranks did, and says what came of it.
bool has_report(const std::vector<ChildProcess>& children) {
    const int code = children.front().exit_code;
    return code >= kExitDone && code != kExitBadInput && !children.front().out_text.empty() &&
           std::all_of(children.begin() + 1, children.end(),
                       [](const ChildProcess& child) { return child.exit_code == kExitDone; });
}

}  // namespace

Status spawn_ranks(const SpawnRequest& request, int* exit_code) {
    int passed_on = 0;
    {
        SignalStream signals;
        GCMOE_RETURN_IF_ERROR(signals.open());
        PrivateFolder folder;
        GCMOE_RETURN_IF_ERROR(folder.make());
        Ranks ranks(request);
        GCMOE_RETURN_IF_ERROR(ranks.start(folder.path()));
        passed_on = ranks.wait_for_all(signals);
        *exit_code = summary_code(ranks.children());
        if (has_report(ranks.children())) {
            print_aside(ranks.children().front().err_text);
            fmt::print("{}", ranks.children().front().out_text);
        } else {
            print_failure(request, ranks.children(), *exit_code);
        }
    }
    if (passed_on != 0) ::raise(passed_on);
    return {};
}

}  // namespace gcmoe::cli
