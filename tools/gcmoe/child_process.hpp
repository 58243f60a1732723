// A child process whose output is collected.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gcmoe/status.hpp"

namespace gcmoe::cli {

struct ChildProcess {
    pid_t pid = -1;
    UniqueFd out;  // read ends; closed at the end of the stream
    UniqueFd err;
    std::string out_text;
    std::string err_text;
    bool has_ended = false;
    int exit_code = -1;      // -1: ended by `signal`
    int signal = 0;          // 0 with exit_code -1: nobody saw how it ended
    int end_order = 0;       // how many others had ended before
    bool was_ended = false;  // told to end by this process: its end is nobody's reason

    // "exit 3", "signal 9 (Killed)".
    [[nodiscard]] std::string end_text() const;
    // The last line that the child wrote to stderr, without the command's name.
    [[nodiscard]] std::string last_word() const;
    // That line is an error of the command.
    [[nodiscard]] bool has_error() const;
};

// Runs this program with other arguments. The child ends when this process does.
// Errors: kUnsupported.
Status start_child(const std::vector<std::string>& arguments, ChildProcess* out);

// Reads what is there; true while the stream goes on.
bool drain(UniqueFd* stream, std::string* text);

// Seconds of processor time that a child has used; 0 once it has ended.
double processor_seconds(const ChildProcess& child);

// Takes note of children that have ended.
void reap(std::vector<ChildProcess>* children);

}  // namespace gcmoe::cli
