// Ranks as processes, from the command line: started by hand one by one, or all by --spawn.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "gcmoe/group.hpp"
#include "gcmoe/status.hpp"

namespace CLI {
class App;
}

namespace gcmoe::cli {

// As parsed.
struct ProcessOptions {
    std::optional<int> rank;
    std::string session;
    bool spawn = false;

    // This process is one rank of many.
    [[nodiscard]] bool is_rank() const { return rank.has_value(); }
};

void add_process_options(CLI::App& command, ProcessOptions* options);

// Errors: kBadInput naming option and value.
Status check_process_options(const ProcessOptions& options, const std::string& backend,
                             const std::string& executor);

// Of --deadline: a limit that waits can have. Errors: kBadInput naming it.
Status check_deadline(double deadline_s);

// This process's group of one rank. Errors: those of Group::join_host, with the option in front.
Status join_processes(const ProcessOptions& options, int num_ranks, double wait_s,
                      std::shared_ptr<Group>* out);

}  // namespace gcmoe::cli
