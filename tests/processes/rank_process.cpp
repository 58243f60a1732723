#include "rank_process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <new>
#include <thread>

#include "protocol/words.hpp"

namespace gcmoe::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatienceSeconds = 10;

void append(const void* from, std::size_t bytes, std::string* to) {
    to->append(static_cast<const char*>(from), bytes);
}
void append(const std::string& text, std::string* to) {
    const std::size_t size = text.size();
    append(&size, sizeof(size), to);
    to->append(text);
}

std::string pack(const Outcome& outcome) {
    std::string bytes;
    append(&outcome.code, sizeof(outcome.code), &bytes);
    append(&outcome.report, sizeof(outcome.report), &bytes);
    append(&outcome.stall_s, sizeof(outcome.stall_s), &bytes);
    append(&outcome.session, sizeof(outcome.session), &bytes);
    append(outcome.message, &bytes);
    append(outcome.leaks, &bytes);
    append(std::string(reinterpret_cast<const char*>(outcome.y.data()), outcome.y.size() * 2),
           &bytes);
    return bytes;
}

// Reads what pack wrote, front to back.
class Unpacker {
  public:
    explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
    void get(void* to, std::size_t bytes) {
        if (bytes == 0) return;
        bytes_.copy(static_cast<char*>(to), bytes, at_);
        at_ += bytes;
    }
    std::string text() {
        std::size_t size = 0;
        get(&size, sizeof(size));
        at_ += size;
        return bytes_.substr(at_ - size, size);
    }

  private:
    const std::string& bytes_;
    std::size_t at_ = 0;
};

Outcome unpack(const std::string& bytes) {
    Outcome outcome;
    Unpacker from(bytes);
    outcome.ended = true;
    from.get(&outcome.code, sizeof(outcome.code));
    from.get(&outcome.report, sizeof(outcome.report));
    from.get(&outcome.stall_s, sizeof(outcome.stall_s));
    from.get(&outcome.session, sizeof(outcome.session));
    outcome.message = from.text();
    outcome.leaks = from.text();
    const std::string y = from.text();
    outcome.y.resize(y.size() / 2);
    y.copy(reinterpret_cast<char*>(outcome.y.data()), y.size());
    return outcome;
}

[[noreturn]] void run_child(const std::function<void(Outcome*)>& body, int pipe) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Outcome outcome;
    const Holdings before = Holdings::now();
    body(&outcome);
    outcome.leaks = Holdings::now().beyond(before);
    const std::string bytes = pack(outcome);
    for (std::size_t at = 0; at < bytes.size();) {
        const ssize_t written = ::write(pipe, bytes.data() + at, bytes.size() - at);
        if (written <= 0) break;
        at += static_cast<std::size_t>(written);
    }
    ::_exit(0);
}

}  // namespace

int culprit_of(const StallReport& report) {
    if (report.cause != StallCause::kPeerFault) return report.peer;
    const int passed_on = protocol::fault_culprit_of(report.seen);
    return passed_on >= 0 ? passed_on : report.peer;
}

SharedBoard::SharedBoard() {
    void* memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    board_ = new (memory) Board{};
}

SharedBoard::~SharedBoard() { ::munmap(board_, sizeof(Board)); }

bool SharedBoard::wait(const std::atomic<int>& word, int value) {
    const auto end = Clock::now() + std::chrono::duration<double>(kPatienceSeconds);
    while (word.load() < value) {
        if (Clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

RankProcess::RankProcess(const std::function<void(Outcome*)>& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::bad_alloc();
    const UniqueFd write_end(ends[1]);
    pipe_ = UniqueFd(ends[0]);
    const pid_t child = ::fork();
    if (child == 0) run_child(body, ends[1]);
    pid_ = std::unique_ptr<pid_t, Reaper>(new pid_t(child));
}

RankProcess::~RankProcess() = default;

void RankProcess::Reaper::operator()(pid_t* pid) const {
    ::kill(*pid, SIGKILL);
    ::waitpid(*pid, nullptr, 0);
    delete pid;
}

void RankProcess::signal(int number) const { ::kill(*pid_, number); }

bool RankProcess::wait_stopped() const {
    const auto end = Clock::now() + std::chrono::duration<double>(kPatienceSeconds);
    while (Clock::now() < end) {
        int state = 0;
        if (::waitpid(*pid_, &state, WUNTRACED | WNOHANG) == *pid_) return WIFSTOPPED(state);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

Outcome RankProcess::wait(double seconds) {
    std::string bytes;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
        pollfd one{pipe_.get(), POLLIN, 0};
        if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) <= 0) return {};
        char part[4096];
        const ssize_t got = ::read(pipe_.get(), part, sizeof(part));
        if (got <= 0) break;
        bytes.append(part, static_cast<std::size_t>(got));
    }
    return bytes.empty() ? Outcome{} : unpack(bytes);
}

Holdings Holdings::now() {
    Holdings holdings;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++holdings.descriptors;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("memfd:gcmoe") != std::string::npos) ++holdings.heaps;
    }
    return holdings;
}

std::string Holdings::beyond(const Holdings& before) const {
    std::string text;
    if (descriptors != before.descriptors) {
        text += std::to_string(descriptors) + " descriptors, before " +
                std::to_string(before.descriptors) + "; ";
    }
    if (heaps != before.heaps) text += std::to_string(heaps) + " mapped heaps";
    return text;
}

ScratchPath::ScratchPath() {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("gcmoe-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++)))
                .string();
}

ScratchPath::~ScratchPath() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
}

bool ScratchPath::exists() const {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::symlink_status(path_, error));
}

}  // namespace gcmoe::test
