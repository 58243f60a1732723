#include "child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace gcmoe::cli {
namespace {

constexpr int kExecFailed = 127;

Status make_pipe(UniqueFd* read_end, UniqueFd* write_end) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return {Code::kUnsupported, "no pipe: " + std::generic_category().message(errno)};
    }
    *read_end = UniqueFd(ends[0]);
    *write_end = UniqueFd(ends[1]);
    for (UniqueFd* end : {read_end, write_end}) {
        // Somebody has closed a standard stream: its number must stay free for the child's.
        if (end->get() > STDERR_FILENO) continue;
        *end = UniqueFd(::fcntl(end->get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
        if (!end->is_open()) {
            return {Code::kUnsupported, "no pipe: " + std::generic_category().message(errno)};
        }
    }
    return {};
}

// Between fork and exec: calls that are safe there only.
[[noreturn]] void become(char* const* arguments, int out, int err, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (::getppid() == parent && ::dup2(out, STDOUT_FILENO) >= 0 &&
        ::dup2(err, STDERR_FILENO) >= 0) {
        ::execv("/proc/self/exe", arguments);
    }
    ::_exit(kExecFailed);
}

std::string last_line(const std::string& text) {
    const std::size_t end = text.find_last_not_of('\n');
    if (end == std::string::npos) return {};
    const std::size_t before = text.rfind('\n', end);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    return text.substr(begin, end + 1 - begin);
}

// "gcmoe run: why".
bool is_error(const std::string& line) {
    return line.rfind("gcmoe ", 0) == 0 && line.find(": ") != std::string::npos;
}

}  // namespace

std::string ChildProcess::end_text() const {
    if (!has_ended) return "runs";
    if (exit_code >= 0) return fmt::format("exit {}", exit_code);
    if (signal == 0) return "an end that nobody saw";
    return fmt::format("signal {} ({})", signal, ::strsignal(signal));
}

std::string ChildProcess::last_word() const {
    std::string line = last_line(err_text);
    return is_error(line) ? line.substr(line.find(": ") + 2) : line;
}

bool ChildProcess::has_error() const { return is_error(last_line(err_text)); }

Status start_child(const std::vector<std::string>& arguments, ChildProcess* out) {
    UniqueFd write_out;
    UniqueFd write_err;
    GCMOE_RETURN_IF_ERROR(make_pipe(&out->out, &write_out));
    GCMOE_RETURN_IF_ERROR(make_pipe(&out->err, &write_err));
    std::vector<char*> words;
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t parent = ::getpid();
    out->pid = ::fork();
    if (out->pid == 0) become(words.data(), write_out.get(), write_err.get(), parent);
    if (out->pid < 0) {
        return {Code::kUnsupported, "no process: " + std::generic_category().message(errno)};
    }
    for (const UniqueFd* stream : {&out->out, &out->err}) {
        ::fcntl(stream->get(), F_SETFL, O_NONBLOCK);
    }
    return {};
}

bool drain(UniqueFd* stream, std::string* text) {
    char part[4096];
    while (stream->is_open()) {
        const ssize_t got = ::read(stream->get(), part, sizeof(part));
        if (got > 0) {
            text->append(part, static_cast<std::size_t>(got));
        } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return true;
        } else {
            *stream = UniqueFd();
        }
    }
    return false;
}

double processor_seconds(const ChildProcess& child) {
    clockid_t clock{};
    timespec used{};
    if (child.has_ended || ::clock_getcpuclockid(child.pid, &clock) != 0 ||
        ::clock_gettime(clock, &used) != 0) {
        return 0;
    }
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void reap(std::vector<ChildProcess>* children) {
    const auto has_ended = [](const ChildProcess& child) { return child.has_ended; };
    int num_ended = static_cast<int>(std::count_if(children->begin(), children->end(), has_ended));
    for (ChildProcess& child : *children) {
        if (child.has_ended) continue;
        int state = 0;
        const pid_t found = ::waitpid(child.pid, &state, WNOHANG);
        if (found == 0 || (found < 0 && errno != ECHILD)) continue;
        child.has_ended = true;
        child.end_order = num_ended++;
        if (found < 0) continue;  // somebody else has taken it
        if (WIFEXITED(state)) child.exit_code = WEXITSTATUS(state);
        if (WIFSIGNALED(state)) child.signal = WTERMSIG(state);
    }
}

}  // namespace gcmoe::cli
